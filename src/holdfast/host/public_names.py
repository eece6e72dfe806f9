"""Which hosts are on the public network: strangers may not choose others for this machine to connect to."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

LOOKUPS_MAX = 4
NAMES_S = 3.0
# A stranger may choose a name whose server never answers. The threads of all other work must not wait for it.
_NAMES = ThreadPoolExecutor(LOOKUPS_MAX, "names")


def is_private_host(host: str) -> bool:
    """Whether the host is named by an address of this machine or of a private network."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost" or host.endswith((".localhost", ".local", ".internal"))
    return not (getattr(address, "ipv4_mapped", None) or address).is_global


async def is_any_private(hosts: Iterable[str]) -> bool:
    """Whether one of them is on such an address, also by its name. For hosts that no stranger chose."""
    asked = tuple(hosts)
    if any(map(is_private_host, asked)):
        return True
    look_up = partial(asyncio.get_running_loop().getaddrinfo, port=None, type=socket.SOCK_STREAM)
    try:
        async with asyncio.timeout(NAMES_S):
            answers = await asyncio.gather(*map(look_up, filter(_is_name, asked)), return_exceptions=True)
    except TimeoutError:
        return False
    found = [address for one in answers if not isinstance(one, BaseException) for *_, address in one]
    return any(is_private_host(str(address[0])) for address in found)


def _is_name(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return True
    return False


async def find_public_addresses(host: str, port: int) -> list[str]:
    """The addresses of the host; none where one of them is private, or the name is not known. Raises OSError and
    UnicodeError; the caller sets the time limit."""
    look_up = partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
    found = await asyncio.get_running_loop().run_in_executor(_NAMES, look_up)
    addresses = list(dict.fromkeys(str(address[0]) for *_, address in found))
    return [] if any(map(is_private_host, addresses)) else addresses
