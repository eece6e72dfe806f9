"""One SMTP conversation on one connection: commands out, whole replies in, and where the point is
from which a mail can be delivered.

RFC 5321: a server delivers nothing before the end of the data, a line with a dot alone, and throws
away what it has if the connection ends before that. So `hand_over` sends the mail without its end;
only `finish` sends the dot. Between the two the caller says that the send begins. From the connect
on the socket lingers for zero seconds: what is not sent when we are gone is not sent later.
"""

from __future__ import annotations

import asyncio
import base64
import re
import socket
import ssl
import struct
from typing import Literal, cast

REPLY_BYTES_MAX = 64 * 1024
Security = Literal["tls", "starttls", "none"]

_LINE = re.compile(rb"([2-5]\d\d)([ -]?)(.*)", re.DOTALL)


class Reply(Exception):
    """A reply that is not the one that was needed; as an error, it says no."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code} {text}")
        self.code = code
        self.text = text


class LineBroken(ConnectionError):
    """The connection ended, or what came was no SMTP."""


class Line(asyncio.Protocol):
    """The connection, and what has come over it."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._came = bytearray()
        self._changed = asyncio.Event()
        self._gone_out = asyncio.Event()
        self._gone_out.set()
        self._lost: Exception | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._came += data
        self._changed.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = exc or ConnectionResetError("the server closed the connection")
        self._changed.set()
        self._gone_out.set()

    def pause_writing(self) -> None:
        self._gone_out.clear()

    def resume_writing(self) -> None:
        self._gone_out.set()

    @property
    def transport(self) -> asyncio.Transport:
        assert self._transport is not None
        return self._transport

    async def reply(self) -> tuple[int, list[str]]:
        """The next whole reply: its code, and the text of each line. Raises LineBroken."""
        lines: list[str] = []
        while True:
            raw = await self._line()
            found = _LINE.fullmatch(raw)
            if found is None:
                raise LineBroken(f"not an SMTP reply: {raw[:80]!r}")
            lines.append(found[3].decode("utf-8", "replace"))
            if found[2] != b"-":
                return int(found[1]), lines

    async def ask(self, command: str, *wanted: int) -> list[str]:
        """Send a command and return the reply's lines. Raises Reply where it is another one."""
        if any(char in command for char in "\r\n\0"):
            raise ValueError("a command must not contain a line break")
        self.transport.write(command.encode("ascii") + b"\r\n")
        return await self.expect(*wanted)

    async def expect(self, *wanted: int) -> list[str]:
        code, lines = await self.reply()
        if code not in wanted:
            raise Reply(code, " / ".join(lines)[:500])
        return lines

    async def hand(self, raw: bytes) -> None:
        """Write, and return when the kernel has taken it all. Raises LineBroken."""
        self.transport.set_write_buffer_limits(high=0)
        self.transport.write(raw)
        await asyncio.sleep(0)  # so that a connection that has just ended is seen
        await self._gone_out.wait()
        if self._lost is not None:
            raise LineBroken(str(self._lost)) from self._lost

    async def start_tls(self, context: ssl.SSLContext, host: str) -> None:
        if self._came:
            raise LineBroken("the server, or an attacker in between, sent data before TLS")
        loop = asyncio.get_running_loop()
        made = await loop.start_tls(self.transport, self, context, server_hostname=host)
        if made is None:
            raise LineBroken("the connection ended in the TLS handshake")
        self._transport = made

    async def _line(self) -> bytes:
        while (end := self._came.find(b"\n")) < 0:
            if self._lost is not None:
                raise LineBroken(str(self._lost)) from self._lost
            if len(self._came) > REPLY_BYTES_MAX:
                raise LineBroken("the server's reply does not end")
            self._changed.clear()
            await self._changed.wait()
        raw = bytes(self._came[:end]).rstrip(b"\r")
        del self._came[: end + 1]
        return raw


async def connect(
    host: str, port: int, *, security: Security, context: ssl.SSLContext | None
) -> tuple[Line, frozenset[str]]:
    """A connection that has said hello, secured as asked; and what the server offers.
    Raises Reply, OSError (LineBroken among them)."""
    loop = asyncio.get_running_loop()
    tls = context if security == "tls" else None
    transport, line = await loop.create_connection(Line, host, port, ssl=tls, server_hostname=host if tls else None)
    try:
        raw: socket.socket = transport.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        own = raw.getsockname()[0]
        hello = f"EHLO [{'IPv6:' if ':' in own else ''}{own}]"
        await line.expect(220)
        offers = _offers(await line.ask(hello, 250))
        if security == "starttls":
            if "STARTTLS" not in offers or context is None:
                raise Reply(530, "the server offers no STARTTLS")
            await line.ask("STARTTLS", 220)
            await line.start_tls(context, host)
            offers = _offers(await line.ask(hello, 250))
    except BaseException:
        line.transport.abort()
        raise
    return line, offers


async def log_in(line: Line, offers: frozenset[str], user: str, password: str) -> None:
    """Raises Reply."""
    words = {word for one in offers if one.startswith("AUTH ") for word in one.split()[1:]}
    if "PLAIN" in words:
        secret = base64.b64encode(f"\0{user}\0{password}".encode()).decode()
        await line.ask(f"AUTH PLAIN {secret}", 235)
    elif "LOGIN" in words:
        await line.ask("AUTH LOGIN", 334)
        await line.ask(base64.b64encode(user.encode()).decode(), 334)
        await line.ask(base64.b64encode(password.encode()).decode(), 235)
    else:
        raise Reply(504, "the server offers neither AUTH PLAIN nor AUTH LOGIN")


async def hand_over(line: Line, sender: str, recipients: list[str], mail: bytes) -> None:
    """Everything but the end of the data: nothing can be delivered yet. Raises Reply."""
    await line.ask(f"MAIL FROM:<{sender}>", 250)
    for one in recipients:
        await line.ask(f"RCPT TO:<{one}>", 250, 251)
    await line.ask("DATA", 354)
    await line.hand(stuffed(mail))


async def finish(line: Line) -> str:
    """The dot, and the server's word. Raises Reply where it says no."""
    line.transport.write(b".\r\n")
    return " / ".join(await line.expect(250))[:500]


def hang_up(line: Line, *, orderly: bool) -> None:
    if not orderly or line.transport.is_closing():
        line.transport.abort()
        return
    raw: socket.socket = line.transport.get_extra_info("socket")
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 0, 0))
    line.transport.write(b"QUIT\r\n")
    line.transport.close()


def stuffed(mail: bytes) -> bytes:
    """Lines end in CR LF, a dot at the beginning of one is doubled, the last one is ended."""
    lines = re.split(rb"\r\n|\r|\n", mail)
    if lines and not lines[-1]:
        lines.pop()
    return b"".join(b"." * line.startswith(b".") + line + b"\r\n" for line in lines)


def _offers(lines: list[str]) -> frozenset[str]:
    return frozenset(one.upper().strip() for one in lines[1:])
