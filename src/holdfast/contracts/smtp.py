"""Mail by SMTP: at most once, in doubt a person; or Queryable where sent mail can be looked up.

SMTP has no key, and no server can be asked about a message. What can be done is done:

* The doubt is as small as it can be. RFC 5321: a server delivers nothing before the end of the data, a line with a dot
  alone, and throws away what it has if the connection ends before that. So `hand_over` sends the mail without its end;
  only `finish` sends the dot, and between the two the caller says that the send begins. Everything before the dot, a
  killed worker too, provably sent nothing and is tried again. From the connect on the socket lingers for zero seconds:
  what is not sent when the process ends is not sent later. Only between dot and reply is the outcome unknown.
* All recipients or none: one that is refused ends the conversation before the data.
* The Message-ID is made from the effect key, so every attempt of a step is the same message to all who look at it:
  people who must decide, servers and mail programs that drop copies, and a lookup, where one is given: a search of a
  Sent folder, of a log, of an archive that gets a copy of all.

A server that says yes has taken the mail over; a later bounce is not this step's matter.
"""

from __future__ import annotations

import asyncio
import base64
import functools
import re
import socket
import ssl
import struct
from collections.abc import Awaitable, Callable
from email.errors import MessageError
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import formatdate
from typing import Any, Literal, TypeVar, cast

from holdfast.contracts.reading import Maker, counted, secret_name
from holdfast.core.effect import Queryable, Unrepeatable
from holdfast.errors import Misuse, NotSent, Refused
from holdfast.runtime.tool.tool import Call, FindAnswer, Found, Unsure

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
                raise LineBroken(f"the server's answer is not an SMTP reply: {raw[:80]!r}")
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
                raise LineBroken(f"a line of the server's reply has more than {REPLY_BYTES_MAX} bytes")
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
    except BaseException:  # also a cancel: no connection stays open
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


TIMEOUT_S = 120.0
RETRY_AFTER_S = 60.0  # a 4xx of a server: busy, greylisted, over its quota
RECIPIENTS_MAX = 100  # what every server must take (RFC 5321, 4.5.3.1.8)
LOOKUP_LAG_S = 300.0
_PORTS = {"tls": 465, "starttls": 587, "none": 25}
_HERE = ("127.0.0.1", "::1", "localhost")

_T = TypeVar("_T")
# How many messages with this Message-ID were sent; None where that cannot be said.
Lookup = Callable[[str], Awaitable[int | None]]
Result = dict[str, Any]  # Any: JSON


class SmtpMail:
    """One sender at one submission server."""

    def __init__(
        self,
        host: str,
        *,
        sender: str,
        user: str = "",
        password: str = "",
        security: Security = "starttls",
        port: int = 0,
        cafile: str = "",
        lookup: Lookup | None = None,
        lookup_lag_s: float = LOOKUP_LAG_S,
        policy: Literal["at_most_once", "at_least_once"] = "at_most_once",
        name: str = "smtp",
        timeout_s: float = TIMEOUT_S,
        needs_approval: bool = False,
    ) -> None:
        """Make the tool.

        Args:
            password: a handle, `secret://NAME`; with `user`.
            security: "tls" from the first byte, "starttls" (must be offered), or "none".
            cafile: certificates to trust instead of the system's, for a server of your own.
            lookup: searches sent mail by its Message-ID; the class is then Queryable.
            lookup_lag_s: how long after the send a mail may be missing there.
            policy: what is done in doubt without a lookup.
            name: the tool is called NAME_send.
        """
        if security not in _PORTS:
            raise Misuse(f"security: 'tls', 'starttls' or 'none', not {security!r}")
        if bool(user) != bool(password):
            raise Misuse("give both user and password, or neither")
        if password and security == "none" and host not in _HERE:
            raise Misuse("security='none' would send the password unencrypted: use 'tls' or 'starttls'")
        given = {
            "host": host,
            "port": port or _PORTS[security],
            "security": security,
            "user": user,
            "password": password,
            "sender": address(sender),
            "cafile": cafile,
        }
        secrets = {"password": secret_name(password, what="password")} if password else None
        effect = Queryable(max_delay_s=lookup_lag_s) if lookup else Unrepeatable(policy=policy)
        make = Maker(name, given=given, secrets=secrets, marks_sending=True, timeout_s=timeout_s)
        find = None if lookup is None else _finder(lookup)
        self.send = make(send, "send", effect, find=find, needs_approval=needs_approval)
        self.tools = [self.send]


async def send(
    call: Call,
    *,
    to: list[str],
    subject: str,
    text: str,
    host: str,
    port: int,
    security: Security,
    user: str,
    password: str,
    sender: str,
    cafile: str,
    html: str = "",
    bcc: list[str] | None = None,
    reply_to: str = "",
) -> Result:
    """Send one mail; the addresses in `to` see each other, those in `bcc` are seen by nobody."""
    recipients = [address(one) for one in (*to, *(bcc or ()))]
    if not to or len(recipients) > RECIPIENTS_MAX:
        raise Misuse(f"give 1 to {RECIPIENTS_MAX} recipients, not {len(recipients)}")
    name = message_id(call, sender)
    mail = _mail(name, sender, to, subject, text, html, address(reply_to) if reply_to else "")
    context = None if security == "none" else _context(cafile)
    line: Line | None = None
    begun = whole = False
    try:
        line, offers = await _in_time(call, connect(host, port, security=security, context=context))
        if user:
            await _in_time(call, log_in(line, offers, user, password))
        await _in_time(call, hand_over(line, sender, recipients, mail))
        call.sending()  # from here on the outcome is unknown, until the server has said yes or no
        begun = True
        answer = await finish(line)
        whole = True
        return {"message_id": name, "answer": answer}
    except Reply as reply:
        whole = True
        raise _refusal(reply) from reply
    except ssl.SSLCertVerificationError as error:  # before the first command; it will not pass
        raise Refused({"error": "certificate", "text": str(error)[:500]}) from error
    except (OSError, TimeoutError, UnicodeError) as error:
        if begun:
            raise LineBroken(f"Holdfast began to send the mail, but {host} did not confirm it: {error}") from error
        raise NotSent(f"the mail was not sent: {host}:{port}: {error or type(error).__name__}") from error
    finally:
        if line is not None:
            hang_up(line, orderly=whole)


def message_id(call: Call, sender: str) -> str:
    """The same for every attempt of this step."""
    return f"<{call.effect_key}@{sender.rpartition('@')[2]}>"


def address(text: str) -> str:
    """A bare ASCII address. Raises Misuse."""
    name, at, host = text.partition("@")
    plain = text.isascii() and all(char > " " and char not in '<>,;:"\\()[]' for char in text)
    if not (name and at and host and plain) or "@" in host or len(text) > 254:
        raise Misuse(f"{text!r} is not a bare address such as ada@example.org")
    return text


def _mail(name: str, sender: str, to: list[str], subject: str, text: str, html: str, reply_to: str) -> bytes:
    mail = EmailMessage(policy=SMTP.clone(cte_type="7bit"))
    try:
        mail["From"] = sender
        mail["To"] = ", ".join(to)
        mail["Subject"] = subject
        mail["Message-ID"] = name
        mail["Date"] = formatdate(usegmt=True)
        if reply_to:
            mail["Reply-To"] = reply_to
        mail.set_content(text)
        if html:
            mail.add_alternative(html, subtype="html")
        return mail.as_bytes()
    except (ValueError, MessageError, UnicodeError) as error:
        raise Misuse(f"these arguments do not make a valid mail: {error}") from error


async def _in_time(call: Call, step: Awaitable[_T]) -> _T:
    """Until the attempt's own deadline, so that its end before the dot is known to be one."""
    async with asyncio.timeout(max(call.deadline_s - 1.0, 0.1)):
        return await step


def _refusal(reply: Reply) -> Refused:
    """A server that says no has not taken the mail; with a 4xx it may do so later."""
    proof = {"status": reply.code, "text": reply.text}
    return Refused(proof, retry_after_s=RETRY_AFTER_S if 400 <= reply.code <= 499 else None)


@functools.lru_cache(maxsize=8)
def _context(cafile: str) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=cafile or None)


def _finder(lookup: Lookup) -> Callable[..., Awaitable[FindAnswer]]:
    async def find(call: Call, *, sender: str, **_args: Any) -> FindAnswer:
        name = message_id(call, sender)
        count = await lookup(name)
        if count is None:
            return Unsure("the lookup cannot tell whether this mail was sent")
        return counted([Found({"message_id": name, "answer": "found in sent mail"})] * count)

    return find
