"""Which snapshots may go from a place: a decision over the signed heads and a listing.

Never removed: the newest verified snapshot, and everything newer than it. So nothing goes before
something newer was restored for a test, and where nothing was ever verified nothing goes at all.
Of the rest the rules keep the newest of each of the last N hours, days, weeks and months: by
periods of the calendar, counted from now, with the times that the heads say, so that back-dated
archives cannot push good ones out.

What must exist is what this machine made or saw there and did not remove itself: what is to go is
taken off that list before it goes, so what an earlier run removed is not asked for again. Where
something that must exist is missing from the listing, another program removed it: then nothing is
removed, and a notice goes out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from holdfast.errors import PruneRefused, SnapshotsMissing

SHOWN_MAX = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionRules:
    hourly: int
    daily: int
    weekly: int
    monthly: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """A snapshot that a head names. `order` only rises: the rank of the head."""

    archive: str
    order: tuple[int, ...]
    at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class PrunePlan:
    keep: tuple[str, ...]
    remove: tuple[str, ...]
    unnamed: tuple[str, ...]  # in the listing, in no head: left alone
    missing: tuple[str, ...]  # must exist and do not


def plan(
    heads: Sequence[Named],
    listed: Iterable[str],
    *,
    made_here: Iterable[str],
    verified: str,
    rules: RetentionRules,
    now: datetime,
    spared: Iterable[str] = (),
) -> PrunePlan:
    """What may go from one place.
    `heads` are those of the agent, whose signatures the caller has checked; `listed` what the repository says it holds;
    `made_here` what this machine made or saw there; `verified` the newest snapshot of this place that was restored for
    a test; `spared` stays in any case."""
    present, made = frozenset(listed), dict.fromkeys(made_here)
    here = (one for one in heads if one.archive in present or one.archive in made)
    known = sorted(here, key=lambda one: one.order)
    floor = next((one.order for one in reversed(known) if one.archive == verified), None)
    kept = _by_rules(known, rules, now) | {verified, *spared}
    may_go = {one.archive for one in known if floor is not None and one.order < floor and one.archive not in kept}
    names = [one.archive for one in known]
    return PrunePlan(
        keep=tuple(name for name in names if name in present and name not in may_go),
        remove=tuple(name for name in names if name in present and name in may_go),
        unnamed=tuple(sorted(present.difference(names))),
        missing=tuple(name for name in made if name not in present),
    )


def check_plan(decided: PrunePlan, *, place: str, accept_missing: bool = False) -> None:
    """Raises PruneRefused if snapshots are missing that we did not remove."""
    if decided.missing and not accept_missing:
        shown = ", ".join(decided.missing[:SHOWN_MAX])
        more = len(decided.missing) - SHOWN_MAX
        raise PruneRefused(
            f"place {place}: {len(decided.missing)} snapshots that must exist are missing: {shown}"
            + (f" and {more} more" if more > 0 else ""),
            hint=SnapshotsMissing.default_hint,
        )


def _by_rules(known: Sequence[Named], rules: RetentionRules, now: datetime) -> frozenset[str]:
    kept: set[str] = set()
    for count, period, back in (  # a period is named in UTC, a week by its ISO number
        (rules.hourly, "%Y-%m-%d %H", timedelta(hours=1)),
        (rules.daily, "%Y-%m-%d", timedelta(days=1)),
        (rules.weekly, "%G-%V", timedelta(weeks=1)),
        (rules.monthly, "%Y-%m", timedelta(days=31)),
    ):
        # In order: the last of a period stays.
        recent = (one for one in known if one.at > now - count * back)
        newest = {one.at.astimezone(UTC).strftime(period): one.archive for one in recent}
        kept.update(newest.values())
    return frozenset(kept)
