"""Keys of age: an X25519 identity as `AGE-SECRET-KEY-1...` and its recipient `age1...`."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from holdfast.core.clock import Entropy
from holdfast.errors import BadInput, VaultDamaged, VaultLocked
from holdfast.identity.records import bech32
from holdfast.identity.records.secret_bytes import SecretBytes, Wiped

KEY_BYTES = 32
SECRET_PREFIX = "age-secret-key-"


class AgeIdentity(Wiped):
    """Opens what was sealed for its recipient. Any age program takes its text."""

    __slots__ = ("_text", "recipient")

    def __init__(self, text: SecretBytes) -> None:
        self._text = text
        self.recipient = str(_pyrage().x25519.Identity.from_str(self.reveal()).to_public())

    @classmethod
    def from_secret(cls, secret: SecretBytes) -> AgeIdentity:
        raw = secret.reveal()
        if len(raw) != KEY_BYTES:
            raise BadInput(f"an X25519 key has {KEY_BYTES} bytes, not {len(raw)}")
        return cls(SecretBytes(bech32.encode(SECRET_PREFIX, raw, form=bech32.Form.BECH32).upper().encode()))

    @classmethod
    def from_text(cls, text: str) -> AgeIdentity:
        """Raises BadInput; the text is not shown."""
        try:
            return cls(SecretBytes(text.strip().encode()))
        except (ValueError, _pyrage().IdentityError):
            raise BadInput("the text is not an age identity") from None

    @classmethod
    def new(cls, entropy: Entropy) -> AgeIdentity:
        return cls.from_secret(SecretBytes(entropy.bytes(KEY_BYTES)))

    def reveal(self) -> str:
        """AGE-SECRET-KEY-1...: what `age -d -i` wants to read."""
        return self._text.reveal().decode()

    def wipe(self) -> None:
        self._text.wipe()

    def __repr__(self) -> str:
        return f"AgeIdentity({self.recipient})"


def is_recipient(text: str) -> bool:
    try:
        _pyrage().x25519.Recipient.from_str(text)
    except _pyrage().RecipientError:
        return False
    return True


INTRO = b"age-encryption.org/v1\n"
ARMOUR_BEGIN = b"-----BEGIN AGE ENCRYPTED FILE-----"
ARMOUR_END = b"-----END AGE ENCRYPTED FILE-----"
COLUMNS = 64
NONCE_BYTES = 16
TAG_BYTES = 16
STANZAS_MAX = 64
HEADER_BYTES_MAX = 64 * 1024
X25519 = "X25519"
REFUSED = ("scrypt", "ssh-ed25519", "ssh-rsa")  # a passphrase could ask for 8 GiB of memory

_ARGUMENT = re.compile(rb"[!-~]+")
_BASE64 = re.compile(rb"[A-Za-z0-9+/]*")
_WHITE = b" \t\r\n"


@dataclass(frozen=True, slots=True)
class Stanza:
    kind: str
    arguments: tuple[str, ...]
    body: bytes


@dataclass(frozen=True, slots=True)
class Header:
    stanzas: tuple[Stanza, ...]


def unarmoured(raw: bytes) -> bytes:
    """The file itself: PEM armour taken off where there is some. Raises VaultDamaged."""
    if not raw.lstrip(_WHITE).startswith(ARMOUR_BEGIN):
        return raw
    lines = raw.strip(_WHITE).replace(b"\r\n", b"\n").split(b"\n")
    if lines[0] != ARMOUR_BEGIN or lines[-1] != ARMOUR_END or len(lines) < 3:
        raise VaultDamaged("the first or last line of an age file in text form is wrong")
    body = lines[1:-1]
    if any(len(line) != COLUMNS for line in body[:-1]) or not 0 < len(body[-1]) <= COLUMNS:
        raise VaultDamaged("a line of an age file in text form is too long or too short")
    text = b"".join(body)
    try:
        plain = base64.b64decode(text, validate=True)
    except binascii.Error:
        raise VaultDamaged("an age file in text form is not base64") from None
    if base64.b64encode(plain) != text:
        raise VaultDamaged("an age file in text form has wrong bits or padding at the end of its base64")
    return plain


def parse(raw: bytes) -> Header:
    """The header of an unarmoured file. Raises VaultDamaged for whatever the standard excludes."""
    if not raw.startswith(INTRO):
        raise VaultDamaged("this is not an age file of version 1")
    reader = _Lines(raw, len(INTRO))
    stanzas: list[Stanza] = []
    line = reader.next()
    while not line.startswith(b"---"):
        if len(stanzas) == STANZAS_MAX:
            raise VaultDamaged(f"an age file has more than {STANZAS_MAX} recipients")
        stanzas.append(_stanza(line, reader))
        line = reader.next()
    if not line.startswith(b"--- ") or len(_decoded(line[4:])) != 32:
        raise VaultDamaged("the header of an age file does not end correctly")
    if not stanzas:
        raise VaultDamaged("an age file has no recipient")
    _check_known(stanzas)
    if len(raw) < reader.at + NONCE_BYTES + TAG_BYTES:
        raise VaultDamaged("an age file is cut short")
    return Header(tuple(stanzas))


def check_recipients(header: Header) -> int:
    """How many X25519 recipients there are. Raises VaultDamaged for passphrases and SSH keys. Kinds that no one knows
    are skipped, as the standard asks: age writers add some on purpose (`...-grease`), so that readers do not forget
    it. They cannot open anything here."""
    for stanza in header.stanzas:
        if stanza.kind in REFUSED:
            raise VaultDamaged(f"an age file has a recipient of kind {stanza.kind}; Holdfast accepts only X25519")
    return sum(stanza.kind == X25519 for stanza in header.stanzas)


class _Lines:
    def __init__(self, raw: bytes, at: int) -> None:
        self._raw = raw
        self.at = at

    def next(self) -> bytes:
        end = self._raw.find(b"\n", self.at, HEADER_BYTES_MAX)
        if end < 0:
            raise VaultDamaged("the header of an age file has no end")
        line, self.at = self._raw[self.at : end], end + 1
        return line


def _stanza(line: bytes, reader: _Lines) -> Stanza:
    words = line.split(b" ")
    if words[0] != b"->" or len(words) < 2:
        raise VaultDamaged("the header of an age file has a line that is not a recipient")
    if not all(_ARGUMENT.fullmatch(word) for word in words[1:]):
        raise VaultDamaged("a recipient of an age file has an empty or unreadable argument")
    kind, *arguments = (word.decode("ascii") for word in words[1:])
    return Stanza(kind, tuple(arguments), _stanza_body(reader))


def _stanza_body(reader: _Lines) -> bytes:
    """Full lines of 64 columns, then one that is shorter, maybe empty."""
    text = b""
    while True:
        line = reader.next()
        if len(line) > COLUMNS or not _BASE64.fullmatch(line):
            raise VaultDamaged("the body of an age file's recipient is malformed")
        text += line
        if len(line) < COLUMNS:
            return _decoded(text)


def _check_known(stanzas: list[Stanza]) -> None:
    """What the standard says of the kinds it defines itself."""
    for stanza in stanzas:
        if stanza.kind == X25519:
            right = len(stanza.arguments) == 1 and len(stanza.body) == 32
            if not right or len(_decoded(stanza.arguments[0].encode())) != 32:
                raise VaultDamaged("an X25519 recipient of an age file is malformed")
        elif stanza.kind == "scrypt" and len(stanzas) > 1:
            raise VaultDamaged("an age file mixes a passphrase with other recipients")


def _decoded(text: bytes) -> bytes:
    """Unpadded base64 in its one proper form."""
    try:
        plain = base64.b64decode(text + b"=" * (-len(text) % 4), validate=True)
    except binascii.Error:
        raise VaultDamaged("the header of an age file holds malformed base64") from None
    if base64.b64encode(plain).rstrip(b"=") != text:
        raise VaultDamaged("the header of an age file has base64 with wrong bits or padding at its end")
    return plain


FILE_BYTES_MAX = 32 * 1024 * 1024  # keys and passphrases; not a file store


def seal(plain: bytes, recipients: Sequence[str]) -> bytes:
    """An age file (binary) that each of the recipients can open, and stock `age` too."""
    if not recipients or len(set(recipients)) != len(recipients):
        raise BadInput("to seal a file, give one or more recipients, each only once")
    if not all(is_recipient(one) for one in recipients):
        raise BadInput("a recipient is not an X25519 recipient of age (age1...)")
    age = _pyrage()
    sealed: bytes = age.encrypt(plain, [age.x25519.Recipient.from_str(one) for one in recipients])
    if check_recipients(parse(sealed)) != len(recipients):
        raise VaultDamaged("the sealed age file has the wrong number of recipients")
    return sealed


def open_sealed(raw: bytes, identity: AgeIdentity) -> bytes:
    """What was sealed. Raises VaultDamaged, or VaultLocked where it is for others."""
    if len(raw) > FILE_BYTES_MAX:
        raise VaultDamaged(f"an age file has {len(raw):,} bytes; the limit is {FILE_BYTES_MAX:,}")
    binary = unarmoured(raw)
    if not check_recipients(parse(binary)):
        raise VaultLocked("an age file has no X25519 recipient")
    age = _pyrage()
    try:
        return age.decrypt(binary, [age.x25519.Identity.from_str(identity.reveal())])
    except age.DecryptError as error:
        # The text is the library's and holds no secret; only this one tells the two cases apart.
        if "No matching keys" in str(error):
            raise VaultLocked("this key does not open the age file") from None
        raise VaultDamaged("the age file was changed or is cut short") from None


def _pyrage() -> Any:  # Any: the package has no types
    return import_module("pyrage")
