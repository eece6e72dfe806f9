"""Borders of vault and paper: slots.json, identity.json, sheets and cards, keys from elsewhere."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import cache
from pathlib import Path

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from holdfast.errors import BadPhrase, BadSheet
from holdfast.identity.files.public_file import identity_of, read_identity, write_identity
from holdfast.identity.paper.paper import CARD_BYTES_MAX, Card, phrase_sheet, read_card, read_secret, share_sheets
from holdfast.identity.paper.phrase import WORDS as WORDS_IN_PHRASE
from holdfast.identity.paper.phrase import Phrase, read_phrase
from holdfast.identity.paper.shares import read_share, split
from holdfast.identity.paper.sheets import PrintedSheet, SheetRegister, parse_register
from holdfast.identity.vault.age import AgeIdentity
from holdfast.identity.vault.import_key import read_key_file
from holdfast.identity.vault.slots import file_key, new_unlock_text
from holdfast.identity.vault.vault import Vault, open_vault
from holdfast.testing.clocks import SeededEntropy
from holdfast_proofs.fuzz.borders.identity import LINES, LOG
from holdfast_proofs.fuzz.borders.texts import folder
from holdfast_proofs.fuzz.feed import as_text, law

_KEY = file_key(Path("/unlock"), new_unlock_text(SeededEntropy(1)))
_IDENTITY = AgeIdentity.new(SeededEntropy(2))
_PHRASE = Phrase(bytes(range(32)))


@cache
def _place(name: str) -> Path:
    made = folder() / name
    made.mkdir(0o700)
    return made


def _file(name: str, raw: bytes) -> Path:
    path = _place("paper") / name
    path.touch(0o600)
    path.write_bytes(raw)
    return path


def slots(raw: bytes) -> None:
    """Whatever lies there opens the vault it was made for, or is refused; no work is done."""
    path = _place("vault") / "slots.json"
    path.touch(0o600)
    path.write_bytes(raw)
    opened = open_vault(path.parent, given=_KEY)
    law(opened.identity.reveal() == _IDENTITY.reveal(), "a vault with another key")


def identity_file(raw: bytes) -> None:
    found = read_identity(_file("identity.json", raw))
    write_identity(_file("again.json", b""), found)
    law(read_identity(_place("paper") / "again.json") == found, "an identity that changed")


def sheets(raw: bytes) -> None:
    found = parse_register(raw)
    law(parse_register(msgspec.json.encode(found)) == found, "a register that changed")
    found.is_fresh("2026-11-15")
    law(found.next_number not in {one.number for one in found.sheets}, "a number used twice")


def sheet(raw: bytes) -> None:
    """A scanned or typed sheet: words, shares, codes."""
    text = as_text(raw)
    with contextlib.suppress(BadSheet):
        read = read_secret(text)
        law((read.phrase is None) != (read.share is None), "neither or both")
    with contextlib.suppress(BadPhrase):
        law(len(read_phrase(text).words) == WORDS_IN_PHRASE, "a phrase of another length")
    share = read_share(text)
    law(read_share(" ".join(share.words)) == share, "a share that changed")


def card(raw: bytes) -> None:
    lines = read_card(as_text(raw))
    law(sum(map(len, lines)) + len(lines) - 1 <= CARD_BYTES_MAX, "a card that is too large")
    law(read_card(*_card(*lines).codes) == lines, "a card that changed")


def key_file(raw: bytes) -> None:
    """An OpenSSH key or a seed, as somebody brings it."""
    found = read_key_file(_file("key", raw))
    law(found.key.signs_for(found.key.public_bytes), "a key that does not sign")


def _card(*lines: bytes) -> Card:
    return Card(name="ada", agent_id=LOG.id, date="", generation=1, records=lines)


def _written(write: Callable[[Path], object], name: str) -> bytes:
    write(_place("paper"))
    return (_place("paper") / name).read_bytes()


def _slots() -> bytes:
    made = _place("made")
    escrow = AgeIdentity.new(SeededEntropy(3)).recipient
    vault = Vault(made, vault_id="00" * 8, identity=_IDENTITY, escrow=escrow)
    vault.close_slots([_KEY], SeededEntropy(4))
    return (made / "slots.json").read_bytes()


_REGISTER = SheetRegister().printed(
    PrintedSheet(number=1, date="2026-11-15", generation=1, verified="2026-11-16"),
    PrintedSheet(number=2, date="2026-11-15", generation=1, document="22bf", needed=2, holder="x"),
)
_SHEETS = (
    phrase_sheet(_PHRASE, name="ada", agent_id=LOG.id, number=1, date="", generation=1),
    *share_sheets(split(_PHRASE, needed=2, total=2), name="ada", agent_id=LOG.id, number=2, date="", generation=1),
)
SLOTS = (_slots(),)
IDENTITIES = (
    _written(
        lambda place: write_identity(
            place / "identity.json", msgspec.structs.replace(identity_of(LOG, name="ada"), paper=_REGISTER)
        ),
        "identity.json",
    ),
)
REGISTERS = (msgspec.json.encode(_REGISTER),)
TEXTS = (
    " ".join(_SHEETS[1].words).encode(),
    " ".join(_SHEETS[2].words).encode(),
    " ".join(_PHRASE.words).encode(),
    *(one.code.encode() for one in _SHEETS),
)
CARDS = tuple(code.encode() for code in _card(LINES[0]).codes)
KEY_FILES = (
    Ed25519PrivateKey.from_private_bytes(bytes(range(32))).private_bytes(
        Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()
    ),
    bytes(range(32)),
)
WORDS = (
    b'"work":{"passes":3,"memory_kib":104857600,"lanes":4}',
    b'"kind":"passphrase"',
    b'"sealed":""',
    b'"kind":"credential"',
    b'"source":"../../x"',
    b"HF1R:",
    b"HF1S:",
    b"HF1C:",
    b"ZOO ",
    b"zoo",
    b'"verified":"2026-02-30"',
    b'"number":0',
    b'"format":2',
    b"AAAA====",
    b"bcrypt",
    b"\0\0\0\x0b",
)
