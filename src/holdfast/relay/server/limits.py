"""Limits of a relay: sizes, and how often an address or an agent may ask. Checked before any signature is.

A bucket holds some tokens and gets new ones at a steady rate; a request takes one, and without one it is refused with
the time to wait. Addresses of IPv6 are counted by their /64, which is what one customer gets.
"""

from __future__ import annotations

import ipaddress
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Generic, TypeVar

from holdfast.identity.records.canonical import LINE_BYTES_MAX
from holdfast.identity.records.fields import LIST_MAX
from holdfast.relay.bounded import keep_newest

RECEIPTS_MAX = 4 * LIST_MAX  # that come with one record: those of the old and of the new witnesses, with room
LOG_BODY_BYTES_MAX = (RECEIPTS_MAX + 1) * (LINE_BYTES_MAX + 1)
LINE_BODY_BYTES_MAX = LINE_BYTES_MAX + 1
BODY_S_MAX = 10.0  # until the whole body of a request is there
BUCKETS_MAX = 16_384  # the longest unused are forgotten; a forgotten one is full again

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Rate:
    burst: float
    per_s: float


READS = Rate(burst=600, per_s=50)  # of one address; a host may run a fleet of agents
WRITES = Rate(burst=200, per_s=10)  # of one address
# What an envelope costs the one that posts it, in requests about mail, if a signature in it is bad: checking one takes
# a relay as long as reading many requests. It is not charged to the agent that it names, who may know nothing of it.
FORGED_COST = 16
# For one agent, of one address: a stranger who writes rubbish for an agent must not use up what its owner has.
AGENT_WRITES = Rate(burst=60, per_s=1)


@dataclass(slots=True)
class Buckets:
    rate: Rate
    _held: OrderedDict[str, tuple[float, float]] = field(default_factory=OrderedDict[str, tuple[float, float]])

    def take(self, name: str, now: float) -> float:
        """0 where a token was there; else the seconds until there is one."""
        wait = self.look(name, now)
        if not wait:
            self.charge(name, now, 1)
        return wait

    def look(self, name: str, now: float) -> float:
        """The same, and the token stays."""
        tokens = self._tokens(name, now)
        return 0.0 if tokens >= 1 else (1 - tokens) / self.rate.per_s

    def charge(self, name: str, now: float, cost: float) -> None:
        """Take what something has cost afterwards. A bucket may owe as much as it can hold."""
        keep_newest(self._held, name, (max(self._tokens(name, now) - cost, -self.rate.burst), now), most=BUCKETS_MAX)

    def _tokens(self, name: str, now: float) -> float:
        tokens, at = self._held.get(name, (self.rate.burst, now))
        return min(self.rate.burst, tokens + max(0.0, now - at) * self.rate.per_s)


@dataclass(slots=True)
class InMemory(Generic[T]):
    """What callers make the relay keep in memory: bodies that are not yet whole, answers that are not read. Too much of
    it, or of one address: the one that began first is ended. An honest one is over in a moment."""

    end: Callable[[T], object]
    bytes_max: int = 32 * 1024 * 1024
    of_address_max: int = 8 * 1024 * 1024
    _sizes: OrderedDict[T, tuple[str, int]] = field(default_factory=OrderedDict[T, tuple[str, int]])

    def add(self, one: T, address: str, size: int) -> None:
        """It has so many bytes now."""
        self._sizes[one] = (address, size)
        while self._sum(address) > self.of_address_max and self._end_oldest(address, but=one):
            pass
        while self._sum() > self.bytes_max and self._end_oldest(but=one):
            pass

    def remove(self, one: T) -> None:
        self._sizes.pop(one, None)

    def _sum(self, address: str | None = None) -> int:
        return sum(size for of, size in self._sizes.values() if address in (None, of))

    def _end_oldest(self, address: str | None = None, *, but: T) -> bool:
        found = next((one for one, (of, _) in self._sizes.items() if address in (None, of) and one is not but), None)
        if found is None:
            return False
        self.remove(found)
        self.end(found)
        return True


@lru_cache(maxsize=4_096)
def block_of(address: str) -> str:
    """What counts as one sender."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address
    if isinstance(found, ipaddress.IPv6Address):
        if found.ipv4_mapped is not None:
            return str(found.ipv4_mapped)
        return str(ipaddress.ip_network((found, 64), strict=False))
    return str(found)
