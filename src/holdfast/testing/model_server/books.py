"""What the server keeps of every request: its bytes above all, so that two can be compared."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from pathlib import Path

import msgspec

_SECRET = ("authorization", "x-api-key")


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """One request as it came. The key is kept as a digest only."""

    number: int
    path: str
    body_base64: str
    body_sha256: str
    headers: dict[str, str]
    key_sha256: str = ""
    turn: int = 0
    answered: str = ""  # "reply", a fault's kind, or the status of a refusal

    @property
    def body(self) -> bytes:
        return base64.b64decode(self.body_base64)


class Books:
    def __init__(self, log: Path | None) -> None:
        self.seen: list[Seen] = []
        self._log = log

    @property
    def next_number(self) -> int:
        return len(self.seen) + 1

    def keep(self, *, path: str, headers: Mapping[str, str], body: bytes, turn: int, answered: str) -> None:
        """Before the answer goes out: a request that was answered is in the books."""
        key = next((headers[name] for name in _SECRET if name in headers), "")
        one = Seen(
            number=self.next_number,
            path=path,
            body_base64=base64.b64encode(body).decode(),
            body_sha256=hashlib.sha256(body).hexdigest(),
            headers={name: text for name, text in headers.items() if name not in _SECRET},
            key_sha256=hashlib.sha256(key.encode()).hexdigest() if key else "",
            turn=turn,
            answered=answered,
        )
        self.seen.append(one)
        if self._log is not None:
            with self._log.open("ab") as file:
                file.write(msgspec.json.encode(one) + b"\n")
