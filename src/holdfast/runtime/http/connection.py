"""Opening and closing the one connection of one exchange.

From the connect on the socket lingers for zero seconds, so that bytes of an exchange that is given
up are thrown away by the kernel; only after a whole answer is the close an orderly one.
"""

from __future__ import annotations

import asyncio
import functools
import socket
import ssl
import struct
from collections.abc import Callable
from typing import TypeVar

from holdfast.runtime.http.message import Target

_LINGER_ZERO, _LINGER_OFF = struct.pack("ii", 1, 0), struct.pack("ii", 0, 0)
_Protocol = TypeVar("_Protocol", bound=asyncio.Protocol)


async def connect(
    target: Target, protocol: Callable[[], _Protocol], *, ssl_context: ssl.SSLContext | None
) -> tuple[asyncio.Transport, _Protocol]:
    """Connect to where the URL leads. Raises OSError."""
    context = (ssl_context or _default_ssl_context()) if target.tls else None
    transport, made = await asyncio.get_running_loop().create_connection(
        protocol, target.host, target.port, ssl=context, server_hostname=target.host if target.tls else None
    )
    _linger(transport, _LINGER_ZERO)
    return transport, made


def close(transport: asyncio.Transport, *, whole: bool) -> None:
    """After a whole exchange an orderly close; otherwise nothing unsent may still go out."""
    if whole and not transport.get_write_buffer_size():
        _linger(transport, _LINGER_OFF)
        transport.close()
    else:
        transport.abort()


@functools.cache
def _default_ssl_context() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


def _linger(transport: asyncio.Transport, option: bytes) -> None:
    raw: socket.socket | None = transport.get_extra_info("socket")
    if raw is not None and not transport.is_closing():
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, option)
