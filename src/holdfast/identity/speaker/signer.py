"""What a signer does for its clients: its verbs, each a whole act, and nothing else.

    id        the agent's id
    log       its key log
    certify   a certificate for an instance key
    answer    an answer to a challenge
    profile   where the agent is to be reached
    head      the head of a snapshot
    ring      the keys that do not sign: a worker reads its journal with them
    mail      the keys that open the agent's mail; once a week the signer makes a new one

There is no verb that takes bytes to sign, none that gives a signing key, and none that changes the
log or, but for the weekly mail key, the vault. Anyone who may ask can have instances certified, for an hour each: that
is what an agent needs to run, and what a thief on its machine gets until the next rotation.
"""

from __future__ import annotations

import struct
from typing import Any, Protocol, cast

import msgspec

from holdfast.core.clock import Clock
from holdfast.core.decoding import decode_json
from holdfast.core.served import ServingRing, listed
from holdfast.errors import BadInput, BadRecord, HoldfastError
from holdfast.identity.records.canonical import Json, encode, parse
from holdfast.identity.records.fields import Fields, inner, several, texts
from holdfast.identity.records.signed import Signed
from holdfast.identity.speaker.speaker import HeadFacts, ProfileFacts, Speaker
from holdfast.identity.statements import statements
from holdfast.identity.statements.certificate import Certificate, Role
from holdfast.identity.statements.statements import ChallengeAnswer, EncryptionKey, Head, JournalMark, Profile, Relay
from holdfast.identity.vault.mail_keys import mail_key_json
from holdfast.identity.witness.witness import copy_of

VERBS = ("id", "log", "certify", "answer", "profile", "head", "ring", "mail")
A_SECOND = 20.0  # requests of one user; a worker needs one in some seconds
BURST = 60.0
TOO_MANY = "too-many"
JOURNAL_KEYS_MAX = 4_096

Said = dict[str, Any]  # Any: JSON for the one who asked


class ListedRing(ServingRing, Protocol):
    """A ring that says which journal keys it has."""

    def key_ids(self) -> list[int]: ...


class SignerService:
    """Answers requests, one at a time."""

    def __init__(self, speaker: Speaker, ring: ListedRing | None, *, clock: Clock) -> None:
        self._speaker = speaker
        self._ring = ring
        self._clock = clock
        self._left: dict[int, tuple[float, int]] = {}  # by user: requests left, and when

    def answer(self, raw: bytes, *, user: int) -> tuple[str, bytes]:
        """The verb, for the log, and the frame that answers it. Raises nothing of ours."""
        if not self._may_ask(user):
            return "", refusal(TOO_MANY, f"the signer got more than {A_SECOND:g} requests in a second")
        verb = ""
        try:
            verb, fields = parse_request(raw)
            return verb, answer(self._done(verb, fields))
        except BadRecord as error:
            return verb, refusal(BadInput.code, error.message)
        except HoldfastError as error:
            return verb, refusal(error.code, error.message, error.hint)

    def _may_ask(self, user: int) -> bool:
        now = self._clock.boot_ms()
        left, at = self._left.get(user, (BURST, now))
        left = min(BURST, left + (now - at) / 1000 * A_SECOND)
        self._left[user] = (left - 1 if left >= 1 else left, now)
        return left >= 1

    def _done(self, verb: str, fields: Fields) -> Said:
        if verb in ("id", "log", "ring", "mail"):
            fields.end()
        match verb:
            case "id":
                return {"id": self._speaker.id}
            case "log":
                return self._log()
            case "ring":
                return self._keys()
            case "mail":
                return {"mail_keys": [mail_key_json(one) for one in self._speaker.mail_keys()]}
            case "certify":
                said = self._certify(fields)
            case "answer":
                said = self._answer(fields)
            case "profile":
                said = self._profile(fields)
            case "head":
                said = self._head(fields)
            case _:
                raise BadRecord(f"request: unknown verb {verb!r}")
        return {"line": said.line().decode()}

    def _log(self) -> Said:
        copy = copy_of(self._speaker.log())
        lines = {"records": copy.records, "receipts": copy.receipts}
        return {name: [line.decode() for line in those] for name, those in lines.items()}

    def _keys(self) -> Said:
        if self._ring is None:
            raise BadInput("this signer has no journal keys")
        ring, ids = self._ring, self._ring.key_ids()[:JOURNAL_KEYS_MAX]
        return {
            "k_effect": ring.k_effect.hex(),
            "current": ring.current_journal_key,
            "journal_keys": [{"id": one, "key": ring.journal_key(one).hex()} for one in ids],
            "journals": listed(ring.journals),
        }

    def _certify(self, fields: Fields) -> Signed[Certificate]:
        inst, role = fields.key("inst"), fields.choice("role", Role)
        e, host, life_s = fields.whole("e"), fields.digest("host"), fields.whole("life_s")
        fields.end()
        return self._speaker.certify(inst=inst, role=role, incarnation=e, host=host, life_s=life_s)

    def _answer(self, fields: Fields) -> Signed[ChallengeAnswer]:
        challenge = fields.text("chal")
        asker = fields.text("to") if "to" in fields else ""
        fields.end()
        return self._speaker.answer(challenge, asker=asker)

    def _profile(self, fields: Fields) -> Signed[Profile]:
        facts = ProfileFacts(ver=fields.whole("ver"), life_s=fields.whole("life_s"))
        facts["relays"], facts["enc"] = several(Relay)(fields, "relays"), several(EncryptionKey)(fields, "enc")
        facts["handles"], facts["left"] = (
            texts(statements.HANDLE_FORM)(fields, "handles"),
            texts(statements.URL_FORM)(fields, "left"),
        )
        facts["policy"] = statements.read_policy(fields)
        fields.end()
        return self._speaker.profile(**facts)

    def _head(self, fields: Fields) -> Signed[Head]:
        e, seq, size_bytes, files = map(fields.whole, ("e", "seq", "bytes", "files"))
        manifest, archive = fields.digest("manifest"), fields.text("archive")
        facts = HeadFacts(
            incarnation=e, seq=seq, manifest=manifest, archive=archive, size_bytes=size_bytes, files=files
        )
        if "journal" in fields:
            facts["journal"] = inner(JournalMark)(fields, "journal")
        if "prev" in fields:
            facts["prev"] = fields.digest("prev")
        fields.end()
        return self._speaker.seal_head(**facts)


VERSION = 1
LENGTH = struct.Struct(">I")
REQUEST_BYTES_MAX = 8_192
ANSWER_BYTES_MAX = 128 << 20  # as much as a home's own log may have


def request(do: str, fields: dict[str, Json]) -> bytes:
    """A request with its length. Raises BadRecord for values that JSON records do not hold."""
    body = encode({"v": VERSION, "do": do, **fields}, what="request", bytes_max=REQUEST_BYTES_MAX)
    return LENGTH.pack(len(body)) + body


def parse_request(raw: bytes) -> tuple[str, Fields]:
    """The verb and its fields, to be taken one by one. Raises BadRecord."""
    fields = Fields(parse(raw, what="request", bytes_max=REQUEST_BYTES_MAX), "request")
    if fields.whole("v") != VERSION:
        raise BadRecord(f"request: its version is not {VERSION}")
    return fields.text("do", chars_max=16), fields


def answer(ok: dict[str, Any]) -> bytes:  # Any: JSON that we made ourselves
    return _framed({"ok": ok})


def refusal(code: str, message: str, hint: str = "") -> bytes:
    return _framed({"error": {"code": code, "message": message, "hint": hint}})


def parse_answer(raw: bytes) -> tuple[dict[str, Any] | None, dict[str, str]]:
    """What it says, or its error. Raises BadRecord. Any: the caller checks it."""
    try:
        found = decode_json(raw)
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        raise BadRecord(f"answer: it is not JSON: {error}") from None
    whole = cast("dict[str, Any]", found) if isinstance(found, dict) else {}
    ok, error = whole.get("ok"), whole.get("error")
    if isinstance(ok, dict):
        return cast("dict[str, Any]", ok), {}
    if not isinstance(error, dict):
        raise BadRecord("answer: it has neither a result nor an error")
    said = cast("dict[str, Any]", error)
    return None, {key: str(said.get(key, "")) for key in ("code", "message", "hint")}


def _framed(value: dict[str, Any]) -> bytes:
    body = msgspec.json.encode(value)
    return LENGTH.pack(len(body)) + body
