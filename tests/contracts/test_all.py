"""What holds for every contract: what a model may pass, where secrets go, how it is loaded."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

import holdfast
from holdfast import contracts
from holdfast.core.secret_handles import names_in
from holdfast.runtime.tool.tool import check_registered


def tools() -> list[holdfast.Tool[..., Any]]:
    payments = contracts.Payments("secret://key")
    objects = contracts.Objects("b", access_key="secret://id", secret_key="secret://key")
    issues = contracts.Issues("o/r", token="secret://key")
    mail = contracts.MailApi("secret://key", sender="bot@example.org")
    smtp = contracts.SmtpMail("mail.example.org", sender="bot@example.org", user="bot", password="secret://key")
    sql = contracts.Sql(print, dsn="secret://key")

    @sql.tool
    def take(tx: object, sku: str) -> None:
        """Take one."""

    return [*payments.tools, *objects.tools, *issues.tools, *mail.tools, *smtp.tools, take]


@pytest.mark.parametrize("tool", tools(), ids=lambda tool: tool.name)
def test_a_model_sees_no_account_and_passes_nothing_else(tool: holdfast.Tool[..., Any]) -> None:
    schema: Any = tool.schema["parameters"]
    assert schema["additionalProperties"] is False
    assert not tool.given.keys() & schema["properties"].keys()
    assert "secret" not in str(schema["properties"])
    assert tool.schema["description"]
    check_registered(tool)


@pytest.mark.parametrize("tool", tools(), ids=lambda tool: tool.name)
def test_every_handle_that_is_given_is_declared(tool: holdfast.Tool[..., Any]) -> None:
    for name, value in tool.given.items():
        assert {*names_in(value)} <= {*tool.secrets.get(name, ())}


def test_a_contract_is_loaded_when_it_is_used() -> None:
    code = (
        "import sys, holdfast, holdfast.contracts; "
        "print(sorted(m for m in sys.modules if m.startswith('holdfast.contracts.')))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    assert set(contracts.__all__) == set(contracts._WHERE)
    for name in contracts.__all__:
        assert getattr(contracts, name).__doc__
    with pytest.raises(AttributeError):
        _ = contracts.Nothing
