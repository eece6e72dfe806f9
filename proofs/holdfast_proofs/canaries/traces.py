"""Fifty secrets, the traces they could leave, and a far end that echoes what it is sent."""

from __future__ import annotations

import base64
import hashlib
import json
import random
import secrets
from collections.abc import Generator, Iterable
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import quote, quote_plus

from holdfast.journal.seal import DataKeySealer, unpacked

COUNT = 50
WINDOW = 12  # characters of a secret in a row that nobody writes by chance
STRIDE = 5  # so a run of 16 is found wherever it begins


def planted() -> list[str]:
    """Values of five kinds: tokens, awkward characters, several lines, other letters, digits."""
    made: list[str] = []
    for number in range(COUNT):
        token = secrets.token_urlsafe(24)
        match number % 5:
            case 0:
                made.append(token)
            case 1:
                made.append(f"{token[:8]}/+\"'\\<&>%= {token[8:]}")
            case 2:
                made.append(f"{token[:16]}\n{token[16:]}\n\t{secrets.token_hex(12)}")
            case 3:
                made.append(f"{token[:12]}-pässwörd-ключ-{token[12:]}")
            case _:
                made.append(str(random.SystemRandom().randrange(10**23, 10**24)))
    return made


def digest(value: str) -> str:
    return hashlib.sha256(value.encode()).hexdigest()


def traces(value: str) -> set[bytes]:
    """Every run of WINDOW bytes that only this value, in some spelling, can have left."""
    raw = value.encode()
    spelled = {
        raw,
        raw.hex().encode(),
        raw.hex().upper().encode(),
        quote(value, safe="").encode(),
        quote_plus(value).encode(),
        json.dumps(value)[1:-1].encode(),
        json.dumps(value, ensure_ascii=False)[1:-1].encode(),
        json.dumps(json.dumps(value)[1:-1])[1:-1].encode(),
        repr(value)[1:-1].encode(),
        value.encode("utf-16-le"),
    }
    for before in range(3):
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            inner = encode(b"\0" * before + raw)
            spelled.add(inner[4 : (before + len(raw)) * 8 // 6])
    return {one[at : at + WINDOW] for one in spelled for at in range(len(one) - WINDOW + 1)}


def hits(haystacks: Iterable[tuple[str, bytes]], values: list[str]) -> list[str]:
    """Where a trace of which value was found."""
    owners = {trace: number for number, value in enumerate(values) for trace in traces(value)}
    found: list[str] = []
    for name, hay in haystacks:
        for at in range(0, len(hay) - WINDOW + 1, STRIDE):
            number = owners.get(hay[at : at + WINDOW])
            if number is not None:
                around = hay[max(0, at - 60) : at + 40]
                found.append(f"{name}: canary {number} at {at}: {around!r}")
    return found


def files_below(folder: Path) -> Generator[tuple[str, bytes]]:
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            yield str(path.relative_to(folder)), path.read_bytes().rstrip(b"\0")


class Opened(set[bytes]):
    """Collects whatever is unsealed in this process: grep finds nothing in what is sealed."""

    @contextmanager
    def collecting(self) -> Generator[None]:
        before = DataKeySealer.open

        keep = self.add

        def opening(self: DataKeySealer, sealed: bytes, place: bytes) -> bytes:
            plain = before(self, sealed, place)
            keep(plain)
            with suppress(ValueError):  # a blob is never packed
                keep(unpacked(plain))
            return plain

        DataKeySealer.open = opening
        try:
            yield
        finally:
            DataKeySealer.open = before


class _Echo(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        seen = {"headers": dict(self.headers.items()), "body": body.decode(), "json": None}
        seen["json"] = json.loads(body)
        raw = json.dumps(seen).encode()
        self.send_response(402 if self.path == "/refuse" else 200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""


@contextmanager
def echoing() -> Generator[str]:
    """A far end's address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Echo)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
