"""Which hosts are on the public network: strangers may not choose others for this machine to connect to."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import socket
import time
from collections import OrderedDict
from collections.abc import Iterable
from concurrent.futures import Future
from functools import partial
from ipaddress import IPv4Address, IPv6Address, IPv6Network

from holdfast.host.slow_reads import begin

_WITH_IPV4 = tuple(map(IPv6Network, ("64:ff9b::/96", "::ffff:0:0:0/96", "::/96")))  # two are translated; an old form
_TRANSLATED_HERE = IPv6Network("64:ff9b:1::/48")  # to IPv4 addresses that the own network chooses

LOOKUPS_MAX = 16
NAMES_S = 3.0
KEPT_S, KEPT_MAX = 60.0, 1_024
# A stranger may choose a name whose server never answers: it takes one thread, and no other name waits for it.
_asked: dict[str, Future[list[str]]] = {}
_known: OrderedDict[str, tuple[float, list[str]]] = OrderedDict()


def is_private_host(host: str) -> bool:
    """Whether the host is named by an address of this machine or of a private network."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost" or host.endswith((".localhost", ".local", ".internal"))
    if address.is_multicast or address in _TRANSLATED_HERE or getattr(address, "is_site_local", False):
        return True
    return not all(one.is_global for one in _reached(address))


def _reached(address: IPv4Address | IPv6Address) -> list[IPv4Address | IPv6Address]:
    """The address, or the IPv4 address that is reached through it."""
    if isinstance(address, IPv4Address):
        return [address]
    low = IPv4Address(int(address) & 0xFFFF_FFFF)
    inside = (address.ipv4_mapped, address.sixtofour, *(address.teredo or ()))
    if any(address in one for one in _WITH_IPV4):
        return [low]
    return [one for one in inside if one is not None] or [address]


async def is_any_private(hosts: Iterable[str]) -> bool | None:
    """Whether one of them is on such an address, also by its name; None: not known, because a name was not answered.
    For hosts that no stranger chose."""
    asked = tuple(hosts)
    if any(map(is_private_host, asked)):
        return True
    looks = [asyncio.create_task(find_addresses(one)) for one in asked]
    if looks:
        await asyncio.wait(looks, timeout=NAMES_S)
    answers = [one.result() for one in looks if one.done() and one.exception() is None]
    for one in looks:
        one.cancel()
    if any(is_private_host(address) for found in answers for address in found):
        return True
    return None if len(answers) < len(asked) else False


async def find_public_addresses(host: str) -> list[str]:
    """The addresses of the host; none where one of them is private. Raises as find_addresses does."""
    addresses = await find_addresses(host)
    return [] if any(map(is_private_host, addresses)) else addresses


async def find_addresses(host: str) -> list[str]:
    """Raises OSError and UnicodeError; the caller sets the time limit."""
    with contextlib.suppress(ValueError):
        return [str(ipaddress.ip_address(host))]
    at, found = _known.get(host, (0.0, list[str]()))
    if found and time.monotonic() - at < KEPT_S:
        return found
    for name, one in list(_asked.items()):
        if one.done():
            _asked.pop(name, None)
    if (asked := _asked.get(host)) is None:
        if len(_asked) >= LOOKUPS_MAX:
            if found:
                return found  # of before: who connects judges the addresses
            raise BlockingIOError(errno.EAGAIN, f"{LOOKUPS_MAX} other names are being looked up")
        asked = _asked[host] = begin(partial(_look_up, host))
    found = await asyncio.wrap_future(asked)
    _known[host] = time.monotonic(), found
    while len(_known) > KEPT_MAX:
        _known.popitem(last=False)
    return found


def _look_up(host: str) -> list[str]:
    answers = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in answers))
