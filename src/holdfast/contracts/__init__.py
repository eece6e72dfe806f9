"""Ready contracts: tools for common far ends, each with the effect class that the far end earns.

A contract is made for one account and yields ordinary tools. Each is in a file of its own and is
loaded when it is first used; what it guarantees is in docs/reference/contracts.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.contracts.issues import Issues
    from holdfast.contracts.mail_api import MailApi, MailEvents
    from holdfast.contracts.objects import Objects
    from holdfast.contracts.payments import PaymentEvents, Payments
    from holdfast.contracts.smtp import SmtpMail
    from holdfast.contracts.sql import Sql

_WHERE = {
    "MailApi": "holdfast.contracts.mail_api",
    "MailEvents": "holdfast.contracts.mail_api",
    "Issues": "holdfast.contracts.issues",
    "Objects": "holdfast.contracts.objects",
    "Payments": "holdfast.contracts.payments",
    "SmtpMail": "holdfast.contracts.smtp",
    "Sql": "holdfast.contracts.sql",
    "PaymentEvents": "holdfast.contracts.payments",
}

__all__ = ["Issues", "MailApi", "MailEvents", "Objects", "PaymentEvents", "Payments", "SmtpMail", "Sql"]


def __getattr__(name: str) -> object:
    module = _WHERE.get(name)
    if module is None:
        raise AttributeError(f"module 'holdfast.contracts' has no attribute {name!r}")
    value = getattr(import_module(module), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
