"""`holdfast tool check` on ready contracts: the class that each declares is the one it proves."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

from holdfast.cli.main import main
from holdfast.testing.lab import Lab
from holdfast_proofs.support.command_line import Commands

KEY = "sk_test_4eC39HqLyjWDarjtT1"
APP = """
import holdfast
from holdfast.contracts import Issues, Payments

payments = Payments("secret://billing", url="http://127.0.0.1:{port}")
issues = Issues("o/r", token="secret://billing", url="http://127.0.0.1:{port}")
app = holdfast.App(tasks=[], tools=[*payments.tools, *issues.tools])
"""
GOOD, OTHER, BAD = (
    json.dumps({"amount": amount, "currency": "eur", "payment_method": method})
    for amount, method in ((100, "pm_1"), (200, "pm_1"), (100, "pm_card_declined"))
)


@contextmanager
def far_end(kind: str, folder: Path) -> Generator[int]:
    (folder / "key").write_text(KEY)
    words = [sys.executable, "-m", "holdfast.testing.far_ends", kind, "--key-file", "key"]
    with subprocess.Popen(words, cwd=folder, stdout=subprocess.PIPE) as child:
        try:
            assert child.stdout is not None
            yield json.loads(child.stdout.readline())["port"]
        finally:
            child.kill()


def test_payments_prove_keyed(lab: Lab, keep: Callable[[str, str], None]) -> None:
    hf = Commands(lab.folder, main)
    with far_end("payments", lab.folder) as port:
        (lab.folder / "shop.py").write_text(APP.format(port=port))
        unset = hf("tool", "check", "shop.py:app", "payment_charge", GOOD, "--yes", code=3)
        assert "no secret 'billing'" in unset.err
        assert not (lab.folder / "keys.json").exists()
        keep("billing", KEY)
        done = hf(
            "tool",
            "check",
            "shop.py:app",
            "payment_charge",
            GOOD,
            "--other",
            OTHER,
            "--refused",
            BAD,
            "--yes",
            "--json",
        )
    assert done.code == 0, done.err
    told = json.loads(done.out)
    assert (told["proved"], told["fingerprint"], told["refusals_stored"]) == ("Keyed", "checked", True)
    assert KEY not in done.out + done.err


def test_issues_prove_queryable(lab: Lab, keep: Callable[[str, str], None]) -> None:
    keep("billing", KEY)
    hf = Commands(lab.folder, main)
    with far_end("issues", lab.folder) as port:
        (lab.folder / "shop.py").write_text(APP.format(port=port))
        done = hf("tool", "check", "shop.py:app", "issue_create", '{"title": "t"}', "--yes", "--json")
    assert (done.code, json.loads(done.out)["proved"]) == (0, "Queryable")
