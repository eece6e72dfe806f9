"""Whether an endpoint may be asked now: a circuit breaker, as pure functions over counts and times.

    closed ── `failures_max` in a row ──► open ── its rest is over ──► one probe ──► closed
       ▲                                    ▲                              │
       └────────── any reply ───────────────┼───────── fails ──────────────┘

- Open, an endpoint is not asked. Its rest doubles each time it opens again, up to a limit.
- After the rest one request alone is let through; if it never reports back (its process hangs), the
  next one may go when `probe_s` are over.
- A rate limit is no failure: the endpoint is well, and rests for as long as it asks.
- A refused key, an unknown model or a spent quota opens it at once: the next request would fare the
  same, and a person must act.

Times are milliseconds of one clock that never falls.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

FAILURES_MAX = 3
REST_MS = 5_000
REST_MS_MAX = 300_000
PROBE_MS = 120_000
RATE_LIMIT_MS = 1_000  # where the provider does not say how long


@dataclass(frozen=True, slots=True, kw_only=True)
class Breaker:
    """The limits by which an endpoint is judged."""

    failures_max: int = FAILURES_MAX
    rest_ms: int = REST_MS
    rest_ms_max: int = REST_MS_MAX
    probe_ms: int = PROBE_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointHealth:
    """What is known of an endpoint. The default is one that was not asked yet."""

    failures: int = 0  # in a row
    trips: int = 0  # times it opened since its last reply
    rests_until_ms: int = 0  # open, or limited, until then
    probe_until_ms: int = 0  # a probe is under way, at most until then

    @property
    def open(self) -> bool:
        return self.trips > 0


def find_wait_ms(health: EndpointHealth, now_ms: int) -> int | None:
    """None where the endpoint may be asked now, else when to look again."""
    if now_ms < health.rests_until_ms:
        return health.rests_until_ms
    if health.open and now_ms < health.probe_until_ms:
        return health.probe_until_ms
    return None


def asked(health: EndpointHealth, now_ms: int, *, breaker: Breaker) -> EndpointHealth:
    """A request goes out; of an open endpoint it is the probe."""
    return replace(health, probe_until_ms=now_ms + breaker.probe_ms) if health.open else health


def given_up(health: EndpointHealth) -> EndpointHealth:
    """The request was ended from our side: it says nothing, and the next may probe."""
    return replace(health, probe_until_ms=0)


def replied(health: EndpointHealth) -> EndpointHealth:
    """A reply came, or an error that is about the request: the endpoint is well."""
    return EndpointHealth(rests_until_ms=health.rests_until_ms if not health.open else 0)


def limited(health: EndpointHealth, now_ms: int, *, retry_after_s: float | None) -> EndpointHealth:
    wait_ms = RATE_LIMIT_MS if retry_after_s is None else round(retry_after_s * 1000)
    until_ms = max(health.rests_until_ms, now_ms + wait_ms)
    return replace(replied(health), rests_until_ms=until_ms)


def failed(
    health: EndpointHealth, now_ms: int, *, breaker: Breaker, at_once: bool = False, retry_after_s: float | None = None
) -> EndpointHealth:
    """No reply, or none to use. `at_once` opens it without counting."""
    failures = health.failures + 1
    asked_ms = now_ms + round((retry_after_s or 0) * 1000)
    if not (health.open or at_once or failures >= breaker.failures_max):
        return replace(health, failures=failures, rests_until_ms=max(health.rests_until_ms, asked_ms))
    rest_ms = min(breaker.rest_ms << min(health.trips, 30), breaker.rest_ms_max)
    return EndpointHealth(failures=failures, trips=health.trips + 1, rests_until_ms=max(now_ms + rest_ms, asked_ms))
