"""The acts of a signer process, for a process that must not hold the key.

Each request is a connection of its own: a signer that was started again is simply asked again.
What comes back is read as strictly as any line of a stranger, and it must be what was asked for.
"""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, Unpack, cast

from holdfast import errors
from holdfast.core.served import Served, parse_served
from holdfast.errors import BadInput, BadRecord, HoldfastError, KeysWrong, SignerRefused, SignerUnavailable
from holdfast.identity.log.log import replay
from holdfast.identity.log.log_state import KeyLog
from holdfast.identity.records.canonical import Json
from holdfast.identity.records.ed25519 import Signatures, Sodium
from holdfast.identity.records.encodings import AgentId, Digest, PublicKey, parse_agent_id
from holdfast.identity.records.fields import fields_json
from holdfast.identity.records.signed import Signed
from holdfast.identity.speaker.signer import ANSWER_BYTES_MAX, LENGTH, TOO_MANY, parse_answer, request
from holdfast.identity.speaker.speaker import HeadFacts, ProfileFacts, head_fields
from holdfast.identity.statements import statements
from holdfast.identity.statements.certificate import Certificate, Role, parse_certificate
from holdfast.identity.statements.statements import ChallengeAnswer, Head, Profile
from holdfast.identity.vault.mail_keys import MailKey, mail_key_of
from holdfast.identity.vault.ring import key_of_hex

TIMEOUT_S = 10.0
PATH_BYTES_MAX = 107  # of a Unix socket
_KNOWN: dict[str, type[HoldfastError]] = {one.code: one for one in (BadInput, errors.KeysReplaced, errors.NotNow)}
_KNOWN.update({one.code: one for one in (errors.LogDamaged, errors.LogMissing)})
_KNOWN.update({one.code: one for one in (errors.VaultDamaged, errors.VaultMissing)})

R = TypeVar("R")
T = TypeVar("T")


class SignerClient:
    """Asks the signer at this socket."""

    def __init__(self, path: Path, *, timeout_s: float = TIMEOUT_S) -> None:
        self.path = path
        self._timeout_s = timeout_s

    def ask(self, do: str, **fields: Json) -> dict[str, Any]:  # Any: checked by the caller
        """What the signer says. Raises SignerUnavailable, SignerRefused, and what it raised."""
        try:
            frame = request(do, fields)
        except BadRecord as error:
            raise BadInput(error.message) from error
        try:
            found, error = parse_answer(self._exchange(frame))
        except (OSError, EOFError) as trouble:
            raise SignerUnavailable(
                f"Holdfast got no usable answer from the signer at {self.path}: {trouble}"
            ) from trouble
        except BadRecord as trouble:
            raise SignerRefused(f"the signer at {self.path} sent an invalid answer: {trouble.message}") from trouble
        if found is not None:
            return found
        if error["code"] == TOO_MANY:
            raise SignerUnavailable(f"the signer at {self.path} refused the request: {error['message']}")
        kind = _KNOWN.get(error["code"])
        if kind is None:
            raise SignerRefused(f"the signer refused the request ({error['code']}): {error['message']}")
        raise kind(error["message"], hint=error["hint"])

    def _exchange(self, frame: bytes) -> bytes:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as link:
            link.settimeout(self._timeout_s)
            link.connect(str(self.path))
            with contextlib.suppress(BrokenPipeError):  # refused unheard: what it says is there
                link.sendall(frame)
            (size,) = LENGTH.unpack(_exactly(link, LENGTH.size))
            if size > ANSWER_BYTES_MAX:
                raise EOFError(f"its answer has {size:,} bytes; at most {ANSWER_BYTES_MAX:,} are allowed")
            return _exactly(link, size)


class SignerSpeaker:
    """speaker.Speaker through the socket of a signer process."""

    def __init__(self, client: SignerClient, *, port: Signatures | None = None) -> None:
        self._client = client
        self._port = port or Sodium()
        self._id: AgentId | None = None

    @property
    def id(self) -> AgentId:
        if self._id is None:
            self._id = _read(parse_agent_id, self._client.ask("id").get("id"))
        return self._id

    def log(self) -> KeyLog:
        said = self._client.ask("log")
        records, receipts = (_lines(said.get(name)) for name in ("records", "receipts"))
        try:
            log = replay(enumerate(records, 1), enumerate(receipts, 1), port=self._port)
        except BadRecord as error:
            raise SignerRefused(f"the signer sent an invalid key log: {error.message}") from error
        if log is None or (self._id is not None and log.id != self._id):
            raise SignerRefused("the signer's key log is empty, or belongs to another agent")
        return log

    def certify(
        self, *, inst: PublicKey, role: Role, incarnation: int, host: Digest, life_s: int
    ) -> Signed[Certificate]:
        fields: dict[str, Json] = {"inst": inst, "role": role.value, "e": incarnation, "host": host, "life_s": life_s}
        signed = self._line("certify", fields, parse_certificate)
        said = signed.record
        asked = (self.id, inst, role, incarnation, host)
        if (said.id, said.inst, said.role, said.e, said.host) != asked:
            raise SignerRefused("the signer's certificate is not the one that Holdfast asked for")
        return signed

    def answer(self, challenge: str, *, asker: str = "") -> Signed[ChallengeAnswer]:
        fields: dict[str, Json] = {"chal": challenge, **({"to": asker} if asker else {})}
        signed = self._line("answer", fields, statements.parse_answer)
        if (signed.record.id, signed.record.chal, signed.record.to) != (self.id, challenge, asker):
            raise SignerRefused("the signer's answer is not for this challenge")
        return signed

    def profile(self, **facts: Unpack[ProfileFacts]) -> Signed[Profile]:
        relays, handles, enc, left = (tuple(facts.get(name, ())) for name in ("relays", "handles", "enc", "left"))
        fields: dict[str, Json] = {
            "ver": facts["ver"],
            "life_s": facts["life_s"],
            "relays": [fields_json(one) for one in relays],
            "handles": list(handles),
            "enc": [fields_json(one) for one in enc],
            "policy": dict(facts.get("policy", ())),
            "left": list(left),
        }
        signed = self._line("profile", fields, statements.parse_profile)
        said = signed.record
        if (said.id, said.ver, said.relays, said.handles, said.left) != (self.id, facts["ver"], relays, handles, left):
            raise SignerRefused("the signer's profile is not the one that Holdfast asked for")
        return signed

    def seal_head(self, **facts: Unpack[HeadFacts]) -> Signed[Head]:
        fields: dict[str, Json] = head_fields(facts)
        if "journal" in fields:
            fields["journal"] = fields_json(fields["journal"])
        signed = self._line("head", fields, statements.parse_head)
        said = signed.record
        asked = (self.id, facts["seq"], facts["manifest"], facts.get("prev"))
        if (said.id, said.seq, said.manifest, said.prev) != asked:
            raise SignerRefused("the signer's head is not the one that Holdfast asked for")
        return signed

    def mail_keys(self) -> tuple[MailKey, ...]:
        try:
            listed = cast("list[dict[str, object]]", self._client.ask("mail")["mail_keys"])
            return tuple(map(mail_key_of, listed))
        except (KeyError, TypeError, ValueError):
            raise SignerRefused("the signer did not send valid mail keys") from None

    def _line(self, do: str, fields: dict[str, Json], parse: Callable[[bytes], Signed[R]]) -> Signed[R]:
        line = self._client.ask(do, **fields).get("line")
        if not isinstance(line, str):
            raise SignerRefused("the signer's answer does not contain a signed statement")
        return _read(lambda text: parse(text.encode()), line)


class SignerRing:
    """core.served.ServingRing whose keys a signer hands out; they are kept in memory alone."""

    def __init__(self, client: SignerClient) -> None:
        self._client = client
        self.journals: Served = ()
        self.k_effect, self.current_journal_key, self._keys = self._ask()

    def change_journals(self, decide: Callable[[Served], Served]) -> None:
        raise BadInput(
            "the signer has the keys of this folder, and a signer adds no journal to them",
            hint="put the new journal into a folder of its own",
        )

    def journal_key(self, key_id: int) -> bytes:
        if key_id not in self._keys:
            k_effect, self.current_journal_key, self._keys = self._ask()  # another process may have added it
            if k_effect != self.k_effect:
                raise KeysWrong("the signer now has the keys of another journal")
        key = self._keys.get(key_id)
        if key is None:
            raise KeysWrong(f"the signer has no journal key {key_id}")
        return key

    def _ask(self) -> tuple[bytes, int, dict[int, bytes]]:
        said = self._client.ask("ring")
        try:
            listed = cast("list[dict[str, Any]]", said["journal_keys"])
            keys = {int(one["id"]): key_of_hex(one["key"]) for one in listed}
            current = int(said["current"])
            if current not in keys:
                raise ValueError("the list of keys does not have the current key")
            self.journals = parse_served(said.get("journals", []))
            return key_of_hex(said["k_effect"]), current, keys
        except (KeyError, TypeError, ValueError, AttributeError):
            raise SignerRefused("the signer did not send valid keys") from None

    def __repr__(self) -> str:
        return f"SignerRing({str(self._client.path)!r})"


def _exactly(link: socket.socket, size: int) -> bytes:
    raw = bytearray()
    while len(raw) < size:
        part = link.recv(min(size - len(raw), 1 << 16))
        if not part:
            raise EOFError("it closed the connection before its answer was complete")
        raw += part
    return bytes(raw)


def _lines(value: object) -> list[bytes]:
    items = cast("list[object]", value) if isinstance(value, list) else [value]
    if not all(isinstance(item, str) for item in items):
        raise SignerRefused("the key log that the signer sent is not a list of text lines")
    return [cast(str, item).encode() for item in items]


def _read(parse: Callable[[str], T], value: object) -> T:
    if not isinstance(value, str):
        raise SignerRefused("the signer's answer has a value that is not text; text was expected")
    try:
        return parse(value)
    except BadRecord as error:
        raise SignerRefused(f"the signer's answer is not valid: {error.message}") from error
