"""How relays have answered lately: which to ask first, when to hedge, and when to leave one alone for a while.

Of a recipient's relays one comes first for every sender, as long as it answers about as fast as the others: the
recipient waits for mail there, and looks for the second copies at the others later, many at once.
"""

from __future__ import annotations

import hashlib
import random
from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from holdfast.layout.witness_address import WitnessRelay

FAILURES_MAX = 3  # in a row
HANGS_ALLOWED = 1
BACKOFF_S, BACKOFF_S_MAX = 0.5, 30.0
HEDGE_S_MIN, HEDGE_S_MAX = 0.3, 2.0
POLL_S_MIN, POLL_S = 12, 20
TIMES_KEPT = 64
RELAYS_MAX = 1_024  # that are remembered
AGAIN_S = 10.0  # after a failure a recipient's first relay is tried again, though the others are good
PREFERRED = 0.1  # of its cost counts for a recipient's first relay: one that is some ten times slower is not chosen


@dataclass(slots=True)
class RelayHealth:
    failures: int = 0
    failed_at: float = 0.0
    open_until: float = 0.0  # the breaker: others are asked first until then
    hangs: int = 0  # in a row
    times: deque[float] = field(default_factory=lambda: deque(maxlen=TIMES_KEPT))

    def succeeded(self, seconds: float) -> None:
        self.failures, self.hangs, self.open_until = 0, 0, 0.0
        self.times.append(seconds)

    def failed(self, now: float) -> None:
        self.failures, self.failed_at = self.failures + 1, now
        if self.failures >= FAILURES_MAX:
            self.open_until = now + backoff_s(self.failures - FAILURES_MAX)

    def hung(self, now: float) -> None:
        """It had not answered when others had, long after it should have. Once may be chance."""
        self.hangs += 1
        if self.hangs > HANGS_ALLOWED:
            self.failed(now)

    @property
    def typical_s(self) -> float:
        return sum(self.times) / len(self.times) if self.times else 0.05

    @property
    def hedge_s(self) -> float:
        """Twice the time within which 95 of 100 answers came."""
        times = sorted(self.times)
        late = times[int(len(times) * 0.95)] if times else 0.0
        return min(max(HEDGE_S_MIN, 2 * late), HEDGE_S_MAX)


@dataclass(slots=True)
class HealthBook:
    _by_key: OrderedDict[str, RelayHealth] = field(default_factory=OrderedDict[str, RelayHealth])

    def of(self, relay: WitnessRelay) -> RelayHealth:
        found = self._by_key[relay.key] = self._by_key.pop(relay.key, None) or RelayHealth()
        if len(self._by_key) > RELAYS_MAX:
            self._by_key.popitem(last=False)
        return found

    def ranked(self, relays: Sequence[WitnessRelay], now: float, *, first: str = "") -> list[WitnessRelay]:
        """The best first. Some chance is in it, so that a relay that was slow once is tried again. `first`: the key of
        the recipient's first relay."""

        def cost(relay: WitnessRelay) -> tuple[bool, float]:
            health = self.of(relay)
            failures, share = health.failures, 1.0
            if relay.key == first:
                failures, share = failures if now < health.failed_at + AGAIN_S else 0, PREFERRED
            return health.open_until > now, (health.typical_s * share + failures) * random.uniform(0.5, 1.5)

        return sorted(relays, key=cost)


def first_relay(id: str, keys: Iterable[str]) -> str:
    """The key of the relay where this recipient waits for mail: the same for all who know its relays, in whatever
    order, and not the same relay for all recipients."""
    return max(keys, key=lambda key: hashlib.sha256(f"{id} {key}".encode()).digest(), default="")


def poll_s() -> int:
    """How long a relay may wait with its answer. Not the same for all: agents that came back together would ask again
    together, every time."""
    return random.randint(POLL_S_MIN, POLL_S)


def backoff_s(tries: int) -> float:
    """Full jitter: anything up to a time that doubles."""
    return random.uniform(0, min(BACKOFF_S * 2 ** min(tries, 10), BACKOFF_S_MAX))
