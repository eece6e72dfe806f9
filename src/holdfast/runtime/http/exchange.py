"""The receiving half of one exchange: bytes in, one whole answer or one error out.

A protocol of its own instead of asyncio's stream reader, because that one throws away bytes
already received when the connection is then reset, and so would lose an answer that came.
"""

from __future__ import annotations

import asyncio
from typing import cast

import h11

from holdfast.runtime.http.message import Response

RESPONSE_BODY_BYTES_MAX = 32 * 1024 * 1024
INFORMATIONAL_MAX = 16  # more 1xx answers than this is a far end that never comes to the point


class ProtocolError(Exception):
    """The far end did not speak HTTP/1.1, or more than the limits allow."""


class Exchange(asyncio.Protocol):
    """Parses the answer of one request; `answer` is done with a Response or an error."""

    def __init__(self, parser: h11.Connection, *, body_bytes_max: int) -> None:
        self.answer: asyncio.Future[Response] = asyncio.get_running_loop().create_future()
        self._parser = parser
        self._body_bytes_max = body_bytes_max
        self._transport: asyncio.Transport | None = None
        self._asked = False
        self._head: h11.Response | None = None
        self._body = bytearray()
        self._informational = 0

    def ask(self, raw: bytes) -> None:
        """Hand the whole request to the kernel."""
        self._asked = True
        assert self._transport is not None
        self._transport.write(raw)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if not self._asked:
            self._fail(ProtocolError("the far end spoke before it was asked"))
        else:
            self._take(data)

    def eof_received(self) -> bool:
        if self._asked:
            self._take(b"")  # ends a body that is delimited by the close, or is an error
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(exc or ConnectionResetError("the connection was closed without an answer"))

    def _take(self, data: bytes) -> None:
        if self.answer.done():
            return
        try:
            self._parser.receive_data(data)
            while not self.answer.done() and self._parse_one():
                pass
        except (h11.RemoteProtocolError, ProtocolError) as error:
            # An end in the wrong place is plainer in our words than in the parser's.
            closed = "the connection was closed before a whole answer came"
            self._fail(ProtocolError(f"not a proper HTTP answer: {error}" if data else closed))

    def _parse_one(self) -> bool:
        match self._parser.next_event():
            case h11.InformationalResponse(status_code=status):
                self._informational += 1
                if status == 101 or self._informational > INFORMATIONAL_MAX:
                    raise ProtocolError(f"unexpected {status}")
            case h11.Response() as head:
                self._head = head
            case h11.Data(data=data):
                self._body += data
                if len(self._body) > self._body_bytes_max:
                    raise ProtocolError(f"body over {self._body_bytes_max:,} bytes")
            case h11.EndOfMessage():
                self._finish()
            case h11.ConnectionClosed():
                raise ProtocolError("closed without an answer")
            case _:
                return False
        return True

    def _finish(self) -> None:
        assert self._head is not None
        headers = read_headers(self._head)
        self.answer.set_result(Response(status=self._head.status_code, headers=headers, body=bytes(self._body)))

    def _fail(self, error: Exception) -> None:
        if not self.answer.done():
            self.answer.set_exception(error)
            self.answer.exception()  # seen: an abandoned exchange must not warn


def read_headers(head: h11.Response) -> dict[str, str]:
    """Names in lower case; repeated ones joined by a comma."""
    headers: dict[str, str] = {}
    for raw_name, raw_value in head.headers:
        name, value = raw_name.decode("ascii"), raw_value.decode("latin-1")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return headers
