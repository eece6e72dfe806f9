"""Which snapshots may go: laws over random histories, and the cases that hurt."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.backup.upkeep.retention import Named, PrunePlan, RetentionRules, check_plan, plan
from holdfast.errors import PruneRefused

NOW = datetime(2026, 11, 15, 12, 30, tzinfo=UTC)
RULES = RetentionRules(hourly=24, daily=14, weekly=8, monthly=12)


def named(seq: int, at: datetime, *, incarnation: int = 1) -> Named:
    return Named(archive=f"ada-{incarnation}-{seq}", order=(0, 0, incarnation, seq), at=at)


def every(step: timedelta, count: int) -> list[Named]:
    """The newest is one step ago."""
    return [named(seq, NOW - (count - seq + 1) * step) for seq in range(1, count + 1)]


def decide(
    heads: list[Named],
    *,
    verified: str,
    listed: list[str] | None = None,
    now: datetime = NOW,
    made: list[str] | None = None,
    rules: RetentionRules = RULES,
) -> PrunePlan:
    names = [one.archive for one in heads]
    return plan(
        heads,
        names if listed is None else listed,
        made_here=names if made is None else made,
        verified=verified,
        rules=rules,
        now=now,
    )


def test_hours_days_weeks_and_months() -> None:
    heads = every(timedelta(hours=1), 24 * 100)
    decided = decide(heads, verified=heads[-1].archive)
    assert 24 + 13 + 6 + 2 <= len(decided.keep) <= 24 + 14 + 8 + 4 + 2
    assert set(decided.keep) | set(decided.remove) == {one.archive for one in heads}
    kept = {one.archive: one for one in heads if one.archive in decided.keep}
    for hours in range(1, 24):
        assert any(NOW - one.at == timedelta(hours=hours) for one in kept.values())


def test_nothing_goes_where_nothing_was_verified() -> None:
    heads = every(timedelta(hours=1), 500)
    assert decide(heads, verified="").remove == ()
    assert decide(heads, verified="of another time").remove == ()


def test_the_last_verified_and_what_is_newer_stay() -> None:
    """Verified a month ago and never since: only what is older than that may go."""
    heads = every(timedelta(hours=1), 24 * 60)
    last = heads[24 * 20]
    decided = decide(heads, verified=last.archive)
    newer = {one.archive for one in heads if one.order >= last.order}
    assert not newer & set(decided.remove)
    assert decided.remove


def test_a_missing_snapshot_stops_the_prune() -> None:
    heads = every(timedelta(hours=1), 48)
    names = [one.archive for one in heads]
    decided = decide(heads, verified=names[-1], listed=names[:-3] + names[-2:])
    assert decided.missing == (names[-3],)
    with pytest.raises(PruneRefused, match=f"1 snapshots that must exist are missing: {names[-3]}") as e:
        check_plan(decided, place="nas")
    assert "If its repository is append-only, it still holds them." in e.value.hint
    check_plan(decided, place="nas", accept_missing=True)


def test_a_snapshot_that_was_never_made_here_is_not_missing() -> None:
    """The disk was in the drawer that day."""
    heads = every(timedelta(hours=1), 48)
    names = [one.archive for one in heads]
    here = names[:10] + names[40:]
    decided = decide(heads, verified=names[-1], listed=here, made=here)
    assert decided.missing == ()


def test_the_verified_one_that_is_gone_is_missing_whatever_the_rules() -> None:
    old = named(1, NOW - timedelta(days=900))
    decided = decide([old, named(2, NOW)], verified=old.archive, listed=["ada-1-2"])
    assert decided.missing == (old.archive,)


def test_archives_that_no_head_names_are_left_alone() -> None:
    heads = every(timedelta(hours=1), 3)
    listed = [one.archive for one in heads] + ["somebody-elses"]
    assert decide(heads, verified="ada-1-3", listed=listed).unnamed == ("somebody-elses",)


def test_back_dated_archives_push_nothing_out() -> None:
    """A thief who may add archives cannot make good ones go: without a head they count nothing."""
    heads = every(timedelta(days=1), 60)
    honest = decide(heads, verified=heads[-1].archive)
    flood = [f"ada-1-{number}" for number in range(1_000, 2_000)]
    flooded = decide(heads, verified=heads[-1].archive, listed=[one.archive for one in heads] + flood)
    assert flooded.keep == honest.keep
    assert flooded.remove == honest.remove


@given(
    st.lists(st.integers(min_value=1, max_value=4_000), min_size=1, max_size=60),
    st.lists(st.integers(min_value=0, max_value=800), min_size=1, max_size=12),
    st.data(),
)
def test_pruning_again_and_again_never_misses_what_it_removed(
    gaps: list[int], waits: list[int], data: st.DataObject
) -> None:
    """Whenever it runs, what an earlier run removed is not asked for; a verified one is left."""
    at = NOW - timedelta(days=400)
    heads: list[Named] = []
    for seq, minutes in enumerate(gaps, 1):
        at += timedelta(minutes=minutes * 10)
        heads.append(named(seq, at))
    now, present, seen, verified = NOW - timedelta(days=380), set[str](), set[str](), ""
    for hours in waits:
        now += timedelta(hours=hours)
        known = [one for one in heads if one.at <= now]
        present |= {one.archive for one in known if one.archive not in seen}
        seen |= present
        if known and data.draw(st.booleans()):
            verified = known[-1].archive
        decided = decide(known, verified=verified, listed=sorted(present), made=sorted(present), now=now)
        assert decided.missing == ()
        assert not verified or verified in decided.keep
        present -= set(decided.remove)
