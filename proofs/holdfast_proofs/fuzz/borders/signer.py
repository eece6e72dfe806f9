"""Border of the signer process: requests of a tool that a model was talked into."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import cast

from holdfast.errors import BadRecord
from holdfast.identity.records.canonical import Json
from holdfast.identity.records.ed25519 import Signer as Key
from holdfast.identity.records.encodings import digest_of
from holdfast.identity.records.records import Keys
from holdfast.identity.speaker.open_speaker import VaultSpeaker
from holdfast.identity.speaker.signer import LENGTH, VERBS, SignerService, request
from holdfast.identity.speaker.signer import parse_answer as parse_reply
from holdfast.identity.statements.certificate import Role, parse_certificate
from holdfast.identity.statements.statements import parse_answer, parse_head, parse_profile
from holdfast.identity.vault.mail_keys import MailKey
from holdfast.identity.vault.vault import Vault
from holdfast.testing.clocks import ManualClock
from holdfast_proofs.fuzz.borders.identity import LOG
from holdfast_proofs.fuzz.feed import law
from holdfast_proofs.identity_schedules.fake import PORT, signer

_PARSERS = {"certify": parse_certificate, "answer": parse_answer, "profile": parse_profile, "head": parse_head}
_DIGEST = digest_of(b"fuzz")
_WISHES: tuple[tuple[str, dict[str, Json]], ...] = (
    ("id", {}),
    ("log", {}),
    ("ring", {}),
    ("certify", {"inst": signer("instance").public, "role": Role.PRIMARY.value, "e": 1, "host": _DIGEST, "life_s": 60}),
    ("answer", {"chal": "challenge-challenge", "to": "somebody"}),
    (
        "profile",
        {
            "ver": 1,
            "life_s": 60,
            "relays": [],
            "handles": ["ada@r.example"],
            "enc": [],
            "policy": {"open": True},
            "left": [],
        },
    ),
    (
        "head",
        {
            "e": 1,
            "seq": 2,
            "manifest": _DIGEST,
            "archive": "a",
            "bytes": 1,
            "files": 1,
            "journal": {"id": "j", "sequence": 1, "incarnation": 1},
            "prev": _DIGEST,
        },
    ),
)
REQUESTS = tuple(request(verb, fields)[LENGTH.size :] for verb, fields in _WISHES)
WORDS = (
    b'"do":"',
    *(f'"{verb}"'.encode() for verb in VERBS),
    b'"sign"',
    b'"v":1',
    b'"v":2',
    b"null",
    b'"bytes":"00"',
    b'"family":"kel"',
    b'"life_s":3601',
    b"-1",
    b"9007199254740993",
    b"1.0",
    b"\\u0061",
    b"[" * 9,
    b'"role":"shadow"',
    b'"seq":1',
)


class _Speaker(VaultSpeaker):
    """With a quick key in the place of the vault's."""

    @contextmanager
    def _held(self, keys: Keys) -> Generator[Sequence[Key]]:  # type: ignore[override]
        yield [signer("op")]

    def mail_keys(self) -> tuple[MailKey, ...]:
        return ()


def signer_request(raw: bytes) -> None:
    """What is asked is refused, or done as the act that it names; never anything else is signed."""
    clock = ManualClock()
    speaker = _Speaker(cast(Vault, None), read_log=lambda: LOG, clock=clock, port=PORT)
    verb, frame = SignerService(speaker, None, clock=clock).answer(raw, user=1)
    ok, error = parse_reply(frame[LENGTH.size :])
    if ok is None:
        law(bool(error["code"]), "a refusal without a reason")
        raise BadRecord(error["message"])
    law(verb in VERBS, "a verb that nobody wrote")
    if "line" in ok:
        said = _PARSERS[verb](ok["line"].encode())
        law(said.record.id == LOG.id, "signed for somebody else")
