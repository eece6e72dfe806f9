"""Verifies the proof that a relay has contradicted itself: `python -m holdfast_proofs.relay_proof FILE`.

A second program on purpose: it takes nothing from Holdfast but the rules of docs/formats/mail.md, so that an operator,
or a judge, need not trust the accuser's code. It needs PyNaCl (signatures) and msgspec (MessagePack). It ends with 0
and says what was contradicted, or with 1 and says why the file proves nothing.
"""

from __future__ import annotations

import base64
import hashlib
import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import nacl.exceptions
import nacl.signing

_BASE58 = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz"


class NoProof(Exception):
    pass


@dataclass
class Said:
    """What one signed answer says of the mailbox."""

    raw: bytes
    heads: dict[int, bytes] = field(default_factory=dict[int, bytes])
    ids: dict[int, bytes] = field(default_factory=dict[int, bytes])
    last: int | None = None
    later_than: str = ""  # the digest of an answer that was there before this one was asked for


def verify(text: bytes) -> str:
    """What the relay has contradicted. Raises NoProof."""
    try:
        proof = json.loads(text)
        said = [_read(one, key=proof["relay"], mailbox=proof["mailbox"]) for one in proof["answers"]]
    except (KeyError, TypeError, ValueError, AttributeError, msgspec.DecodeError) as error:
        raise NoProof(f"the file cannot be read: {error!r}") from None
    for n, one in enumerate(said):
        for other in said[n + 1 :]:
            why = _contradiction(one, other) or _contradiction(other, one)
            if why:
                return why
    raise NoProof("the answers do not contradict each other")


def _contradiction(one: Said, other: Said) -> str:
    for seq, head in one.heads.items():
        if other.heads.get(seq, head) != head:
            return f"two heads of the chain after entry {seq}"
    for seq, id_ in one.ids.items():
        if other.ids.get(seq, id_) != id_:
            return f"two envelopes under the number {seq}"
    newest = max(one.heads, default=0)
    if other.last is not None and other.later_than == _digest(one.raw) and other.last < newest:
        return f"entry {newest} was confirmed, and later there were only {other.last}"
    return ""


def _read(shown: dict[str, str], *, key: str, mailbox: str) -> Said:
    raw = base64.b64decode(shown["answer"], validate=True)
    line, _, content = raw.partition(b"\n")
    body = _signed_by(line, key)
    answer = json.loads(body)
    if (answer["t"], answer["wit"], answer["st"]) != ("ran", key, 200) or answer["body"] != _digest(content):
        raise NoProof("an answer is of another relay, is a refusal, or has other content than was signed")
    told: Any = json.loads(content) if content[:1] == b"{" else msgspec.msgpack.decode(content)
    if told["to"] != mailbox:
        raise NoProof("an answer is about another mailbox")
    said = Said(raw)
    if shown["nonce"]:
        asked = "\n".join(("GET", shown["target"], shown["nonce"], "")).encode()
        said.later_than = shown["nonce"] if answer["ask"] == _digest(asked) else ""
    match told["t"]:
        case "stored":
            for item in told["items"]:
                if item.get("seq") and not item.get("code"):
                    said.heads[item["seq"]] = bytes.fromhex(item["head"])
                    said.ids[item["seq"]] = bytes.fromhex(item["id"])
        case "login":
            said.heads[told["last"]], said.last = bytes.fromhex(told["head"]), told["last"]
        case "mail":
            seq, head = told["after"], told["head"]
            said.heads[seq], said.last = head, told["last"]
            for number, id_, *_ in told["items"]:
                if number != seq + 1:
                    raise NoProof("a list of mail has a gap")
                seq = number
                head = hashlib.sha256(b"holdfast/1/chain\0" + head + seq.to_bytes(8, "big") + id_).digest()
                said.heads[seq], said.ids[seq] = head, id_
        case _:
            raise NoProof("an answer says nothing about a mailbox")
    return said


def _signed_by(line: bytes, key: str) -> bytes:
    """The body of the line, whose one signature is by this key."""
    start, end = len(b'{"b":'), line.rindex(b',"sig":[')
    body = line[start:end]
    ((signer, signature),) = json.loads(line)["sig"]
    if signer != key or not line.startswith(b'{"b":'):
        raise NoProof("an answer is signed by another key")
    verifier = nacl.signing.VerifyKey(_key_bytes(key))
    try:
        verifier.verify(b"holdfast/1/relay\0" + body, base64.urlsafe_b64decode(signature + "=="))
    except nacl.exceptions.BadSignatureError:
        raise NoProof("the relay did not sign one of the answers") from None
    return body


def _key_bytes(key: str) -> bytes:
    number = 0
    for char in key.removeprefix("z"):
        number = number * 58 + _BASE58.index(char)
    raw = number.to_bytes(34, "big")
    if raw[:2] != b"\xed\x01":
        raise NoProof("the relay's key is no Ed25519 key")
    return raw[2:]


def _digest(raw: bytes) -> str:
    return base64.b32encode(hashlib.sha256(raw).digest()).decode().lower().rstrip("=")


def main(words: list[str]) -> int:
    for word in words:
        try:
            print(f"{word}: proven: {verify(Path(word).read_bytes())}")
        except (NoProof, OSError) as error:
            print(f"{word}: not proven: {error}", file=sys.stderr)
            return 1
    return 0 if words else 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
