"""Random sets of facts, and the level by the plain definitions, written a second time and otherwise."""

from __future__ import annotations

import random

import msgspec

from holdfast.core.surfaces import DAY_MS, HOUR_MS, Fact, Targets

NOW = 1_800_000_000_000
TARGETS = Targets(rpo_s=86_400)
PLACES = ("a", "b", "c")
# Around every limit.
AGES = (0, HOUR_MS, 23 * HOUR_MS, 25 * HOUR_MS, 29 * DAY_MS, 31 * DAY_MS, 89 * DAY_MS, 91 * DAY_MS, 400 * DAY_MS)
YES = (
    "state.on-disk",
    "state.resumes",
    "identity.log",
    "identity.keys-apart",
    "identity.witnessed",
    "paper",
    "journal.shared",
)


def fact(name: str, value: bool | int | str = True, *, about: str = "", age_ms: int = 0) -> Fact:
    return Fact(name=name, value=value, at_ms=NOW - age_ms, source="a test", about=about)


def is_duty(one: Fact) -> bool:
    """Facts that are no evidence: they may lower the level."""
    if one.name in ("place", "place.away", "place.device", "place.unverified"):
        return True
    return (one.name == "drill" and not one.value) or (one.name == "drill.lost" and bool(one.value))


def random_facts(rng: random.Random) -> list[Fact]:
    """A whole agent from which some evidence is left out, and some of which is old."""
    left_out = rng.choice((0.0, 0.02, 0.1, 0.5))
    old = rng.choice((0.0, 0.05, 0.3))
    found = list[Fact]()

    def add(name: str, value: bool | int | str = True, *, about: str = "") -> None:
        if rng.random() >= left_out:
            age_ms = rng.choice(AGES) if rng.random() < old else rng.choice(AGES[:3])
            found.append(fact(name, value, about=about, age_ms=age_ms))

    for name in YES:
        add(name)
    for place in PLACES[: rng.choice((0, 1, 2, 2, 2, 3))]:
        found.append(fact("place", rng.choice(("here", "there", place)), about=place))
        add("place.device", rng.choice(("disk 1", "disk 2", f"disk of {place}")), about=place)
        for name in ("place.off", "place.made", "place.verified", "place.escrow"):
            add(name, about=place)
        if rng.random() < 0.1:
            found.append(fact("place.away", "not there now", about=place))
        if rng.random() < 0.1:
            found.append(fact("place.unverified", about=place, age_ms=rng.choice(AGES[:4])))
    add("paper.read-back")
    add("instances.alive", rng.choice((0, 1, 2, 2, 3)))
    for slug in ("host-loss", "region-loss", "two-alive"):
        for _ in range(rng.choice((1, 1, 2))):
            add("drill", rng.random() < 0.9, about=slug)
    add("drill.lost", rng.choice((0, 0, 0, 3)), about="region-loss")
    return found


def expected(facts: list[Fact]) -> tuple[int, int]:
    """Level and proven level, by the definitions."""

    def some(name: str, *, about: str | None = None, days: int | None = None) -> bool:
        return any(
            one.name == name
            and one.value
            and about in (None, one.about)
            and (days is None or NOW - (one.at_ms or 0) <= days * DAY_MS)
            for one in facts
        )

    def last(name: str, about: str) -> Fact | None:
        found = [one for one in facts if (one.name, one.about) == (name, about)]
        return max(found, key=lambda one: (one.at_ms or 0, not one.value), default=None)

    def drilled(slug: str, days: int) -> bool:
        newest = last("drill", slug)
        return newest is not None and bool(newest.value) and NOW - (newest.at_ms or 0) <= days * DAY_MS

    places = {one.about: one.value for one in facts if one.name == "place"}
    device = {one.about: one.value for one in facts if one.name == "place.device"}
    tested = {one.about: NOW - (one.at_ms or 0) for one in facts if one.name == "place.verified"}
    away = {one.about for one in facts if one.name == "place.away"}
    here = places.keys() - away
    seen = tested.keys() - away
    apart = any(
        places[x] != places[y] and x in device and y in device and device[x] != device[y] for x in seen for y in seen
    )
    waiting = [NOW - (one.at_ms or 0) for one in facts if one.name == "place.unverified"]
    lost = last("drill.lost", "region-loss")
    has = {
        1: some("state.on-disk") and some("state.resumes"),
        2: any(some("place.off", about=one) and some("place.made", about=one) for one in here),
        3: some("identity.log") and some("identity.keys-apart") and some("paper"),
        4: some("journal.shared") and any(one.name == "instances.alive" and int(one.value) >= 2 for one in facts),
    }
    proof = {
        1: True,
        2: bool(seen)
        and all(age <= 24 * HOUR_MS for age in waiting)
        and apart
        and all(tested.get(one, NOW) <= 86_400_000 for one in places),
        3: some("paper.read-back", days=90)
        and sum(some("place.escrow", about=one) for one in here) >= 2
        and drilled("host-loss", 90),
        4: drilled("region-loss", 30)
        and drilled("two-alive", 30)
        and lost is not None
        and lost.value == 0
        and NOW - (lost.at_ms or 0) <= 30 * DAY_MS,
    }
    level = next((n - 1 for n in range(1, 5) if not has[n]), 4)
    return level, next((n - 1 for n in range(1, level + 1) if not proof[n]), level)


def older(one: Fact, ms: int) -> Fact:
    return msgspec.structs.replace(one, at_ms=(one.at_ms or 0) - ms)
