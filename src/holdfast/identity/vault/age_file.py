"""Seal for X25519 recipients, and open what was so sealed. pyrage does the cryptography.

A file is opened only after age_header.py has found it well formed and for X25519 recipients
alone. age does not say who sealed a file: anybody who knows a recipient can make one. Whoever
relies on the contents checks them (the vault's are bound to its id).
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import Any

from holdfast.errors import BadInput, VaultDamaged, VaultLocked
from holdfast.identity.vault.age_header import check_recipients, parse, unarmoured
from holdfast.identity.vault.age_keys import AgeIdentity, is_recipient

FILE_BYTES_MAX = 32 * 1024 * 1024  # keys and passphrases; not a file store


def seal(plain: bytes, recipients: Sequence[str]) -> bytes:
    """An age file (binary) that each of the recipients can open, and stock `age` too."""
    if not recipients or len(set(recipients)) != len(recipients):
        raise BadInput("a file is sealed for one or more different recipients")
    if not all(is_recipient(one) for one in recipients):
        raise BadInput("a recipient is no X25519 recipient of age (age1...)")
    age = _pyrage()
    sealed: bytes = age.encrypt(plain, [age.x25519.Recipient.from_str(one) for one in recipients])
    if check_recipients(parse(sealed)) != len(recipients):
        raise VaultDamaged("a file was sealed for another number of recipients than asked")
    return sealed


def open_sealed(raw: bytes, identity: AgeIdentity) -> bytes:
    """What was sealed. Raises VaultDamaged, or VaultLocked where it is for others."""
    if len(raw) > FILE_BYTES_MAX:
        raise VaultDamaged(f"an age file has {len(raw):,} bytes; {FILE_BYTES_MAX:,} are read")
    binary = unarmoured(raw)
    if not check_recipients(parse(binary)):
        raise VaultLocked("an age file has no X25519 recipient")
    age = _pyrage()
    try:
        return age.decrypt(binary, [age.x25519.Identity.from_str(identity.reveal())])
    except age.DecryptError as error:
        # The text is the library's and holds no secret; only this one tells the two cases apart.
        if "No matching keys" in str(error):
            raise VaultLocked("an age file was not sealed for this key") from None
        raise VaultDamaged("an age file was changed or is cut short") from None


def _pyrage() -> Any:  # Any: the package has no types
    return import_module("pyrage")
