"""A submission server over real sockets: STARTTLS, AUTH, and mail that is taken at the dot alone.

Troubles, one per conversation: `lose` takes the mail and closes without a word; `hold` takes it and keeps its word
back; `reset` closes at the dot and takes nothing; `wait` keeps back the word that asks for the data; `greet`, `mail`,
`rcpt`, `data`, `dot` answer that command with `status`; `cut` closes in the middle of the data.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import ssl
from dataclasses import dataclass
from email import message_from_bytes
from email.message import Message
from typing import Literal

from holdfast.testing.far_ends.web import Door


@dataclass(frozen=True, slots=True)
class SmtpTrouble:
    kind: Literal["lose", "hold", "reset", "wait", "cut", "greet", "mail", "rcpt", "data", "dot"]
    status: int = 451


@dataclass(frozen=True, slots=True)
class Taken:
    """One mail that the server has taken over."""

    sender: str
    recipients: tuple[str, ...]
    raw: bytes
    tls: bool

    @property
    def mail(self) -> Message:
        return message_from_bytes(self.raw)

    @property
    def id(self) -> str:
        return str(self.mail["Message-ID"])


class SubmissionServer(Door):
    def __init__(
        self,
        *,
        user: str = "",
        password: str = "",
        tls: ssl.SSLContext | None = None,
        from_the_start: bool = False,
        words: str = "PLAIN LOGIN",
    ) -> None:
        super().__init__(tls=tls if from_the_start else None)
        self._login = (user, password)
        self._tls = tls
        self._words = words
        self.taken: list[Taken] = []
        self.talks = 0
        self.troubles: list[SmtpTrouble] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.talks += 1
        trouble = self.troubles.pop(0) if self.troubles else None
        talk = _Talk(self, reader, writer, trouble, tls=self._from_the_start is not None)
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            await talk.serve()

    # used by a conversation

    @property
    def context(self) -> ssl.SSLContext | None:
        return self._tls

    @property
    def words(self) -> str:
        return self._words

    def knows(self, user: str, password: str) -> bool:
        return (user, password) == self._login

    @property
    def wants_login(self) -> bool:
        return bool(self._login[0])


class _Talk:
    def __init__(
        self,
        server: SubmissionServer,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        trouble: SmtpTrouble | None,
        *,
        tls: bool,
    ) -> None:
        self._server = server
        self._reader = reader
        self._writer = writer
        self._kind = trouble.kind if trouble else ""
        self._status = trouble.status if trouble else 0
        self._tls = tls
        self._known = False
        self._sender = ""
        self._recipients: list[str] = []

    async def serve(self) -> None:
        await self._say(*(("no", self._status) if self._kind == "greet" else ("mail.test", 220)))
        while self._kind != "greet":
            line = await self._line()
            verb, _, rest = line.partition(" ")
            match verb.upper():
                case "EHLO":
                    await self._hello()
                case "STARTTLS":
                    await self._start_tls()
                case "AUTH":
                    await self._log_in(rest)
                case "MAIL":
                    await self._mail(rest)
                case "RCPT":
                    await self._rcpt(rest)
                case "DATA":
                    if not await self._data():
                        return
                case "QUIT":
                    await self._say("bye", 221)
                    return
                case _:
                    await self._say("what", 500)

    async def _hello(self) -> None:
        offers = ["mail.test", "SIZE 35882577", "8BITMIME"]
        if self._server.context is not None and not self._tls:
            offers.append("STARTTLS")
        elif self._server.wants_login:
            offers.append(f"AUTH {self._server.words}")
        lines = [f"250{'-' if n < len(offers) - 1 else ' '}{o}" for n, o in enumerate(offers)]
        self._writer.write("".join(f"{line}\r\n" for line in lines).encode())
        await self._writer.drain()

    async def _start_tls(self) -> None:
        assert self._server.context is not None
        await self._say("go ahead", 220)
        await self._writer.start_tls(self._server.context)
        self._tls = True

    async def _log_in(self, rest: str) -> None:
        kind, _, first = rest.partition(" ")
        if kind == "PLAIN":
            _, user, password = base64.b64decode(first).decode().split("\0")
        else:
            await self._say("VXNlcm5hbWU6", 334)
            user = base64.b64decode(await self._line()).decode()
            await self._say("UGFzc3dvcmQ6", 334)
            password = base64.b64decode(await self._line()).decode()
        self._known = self._server.knows(user, password)
        await self._say(*(("welcome", 235) if self._known else ("who", 535)))

    async def _mail(self, rest: str) -> None:
        if self._server.wants_login and not self._known:
            await self._say("authentication required", 530)
        elif self._kind == "mail":
            await self._say("no", self._status)
        else:
            self._sender, self._recipients = _address(rest), []
            await self._say("ok", 250)

    async def _rcpt(self, rest: str) -> None:
        if self._kind == "rcpt" and self._recipients:  # the second one
            await self._say("no such user", self._status)
            return
        self._recipients.append(_address(rest))
        await self._say("ok", 250)

    async def _data(self) -> bool:
        """Take the mail at the dot, and only there. False where the conversation is over."""
        if self._kind == "wait":
            await self._server.hold()
        if self._kind == "data":
            await self._say("no", self._status)
            return True
        await self._say("end with a dot", 354)
        if self._kind == "cut":
            await self._reader.read(20)
            return False
        lines: list[bytes] = []
        while (line := await self._reader.readuntil(b"\r\n")) != b".\r\n":
            lines.append(line[1:] if line.startswith(b".") else line)
        if self._kind == "reset":
            return False
        if self._kind == "dot":
            await self._say("no", self._status)
            return True
        taken = Taken(self._sender, tuple(self._recipients), b"".join(lines), self._tls)
        self._server.taken.append(taken)
        if self._kind == "hold":
            await self._server.hold()
        if self._kind == "lose":
            return False
        await self._say(f"queued as {len(self._server.taken)}", 250)
        return True

    async def _line(self) -> str:
        return (await self._reader.readuntil(b"\r\n")).decode().strip()

    async def _say(self, text: str, code: int) -> None:
        self._writer.write(f"{code} {text}\r\n".encode())
        await self._writer.drain()


def _address(rest: str) -> str:
    return rest.partition("<")[2].partition(">")[0]
