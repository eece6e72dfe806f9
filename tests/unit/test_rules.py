"""The decisions that every journal shares."""

from __future__ import annotations

import itertools

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core.ids import TaskId
from holdfast.core.notices import poison_notice, task_damaged_notice
from holdfast.errors import InvariantViolated, LeaseLost, TooLarge
from holdfast.journal import rules
from holdfast.journal.contract import Change, InboxKind
from holdfast.journal.records import ENDED, RecordKind, TaskState
from holdfast.journal.rules import NEVER_MS, Claimable, Death, Lease, LeaseWatch, LookedAt, SeenCommit

TASK = TaskId("01J9ZK3V5T8Q2M4N6P7R8S9T0V")
NOW = 1_000_000

moments = st.integers(0, 10**13)


# sessions


@pytest.mark.parametrize(
    ("ttl_ms", "left_ms"), [(10_000, 9_700), (60_000, 58_700), (2_000, 1_860), (1_000, 930), (500, 465), (20, 18)]
)
def test_the_own_deadline_is_two_percent_and_a_constant_earlier(ttl_ms: int, left_ms: int) -> None:
    assert rules.deadline_boot_ms(0, ttl_ms) == left_ms
    assert rules.deadline_boot_ms(5_000, ttl_ms) == 5_000 + left_ms


@given(moments, st.integers(1, 10**9))
def test_the_own_deadline_lies_before_the_journals(request: int, ttl_ms: int) -> None:
    own = rules.deadline_boot_ms(request, ttl_ms)
    assert request - 1 <= own < rules.lease_until_boot_ms(request, ttl_ms)


@pytest.mark.parametrize(
    ("ended", "lock_free", "boot_id", "until", "death"),
    [
        (False, False, "b1", NOW + 1, Death.NO),
        (False, None, "b1", NOW + 1, Death.NO),
        (False, False, "b1", NOW, Death.OVER),  # a paused process keeps its lock, not its lease
        (False, None, "b1", NOW, Death.OVER),
        (False, True, "b1", NOW + 1, Death.PROVEN),
        (True, False, "b1", NOW + 1, Death.PROVEN),
        (False, None, "b0", NOW + 1, Death.PROVEN),
    ],
)
def test_when_a_session_of_an_embedded_journal_is_dead(
    ended: bool, lock_free: bool | None, boot_id: str, until: int, death: Death
) -> None:
    lease = Lease(session_id="s", ended=ended, boot_id=boot_id, until_boot_ms=until)
    assert rules.session_dead(lease, LookedAt(boot_id="b1", boot_ms=NOW), lock_free=lock_free) is death


JOURNAL_NOW = 10**12
BOOTED = JOURNAL_NOW - NOW  # when this machine was started, in the journal's time


@pytest.mark.parametrize(
    ("host", "boot", "lock_free", "until", "death"),
    [
        ("there", "b9", None, JOURNAL_NOW + 1, Death.NO),  # another boot is another machine's
        ("there", "b9", None, JOURNAL_NOW, Death.OVER),
        ("there", "b9", None, JOURNAL_NOW + 10_000, Death.NO),
        ("there", "b9", None, JOURNAL_NOW + 10_001, Death.OVER),  # of before the clock was set back
        ("there", "b1", True, JOURNAL_NOW + 1, Death.NO),  # a lock that is free here says nothing about there
        ("here", "b1", True, JOURNAL_NOW + 1, Death.PROVEN),
        ("here", "b1", False, JOURNAL_NOW - 10**6, Death.NO),  # on one machine its boot clock is better
        ("here", "b0", None, BOOTED + 9_000, Death.PROVEN),  # renewed before this boot began
        ("here", "b0", None, JOURNAL_NOW + 9_000, Death.NO),  # renewed since: a copy of this machine
    ],
)
def test_when_a_session_of_a_shared_journal_is_dead(
    host: str, boot: str, lock_free: bool | None, until: int, death: Death
) -> None:
    def found(since_boot_ms: int, **changed: object) -> Death:
        watch = LeaseWatch(timeline="1", boot_ms=NOW, seen={"s": (until, since_boot_ms)})
        at = LookedAt(boot_id="b1", boot_ms=NOW, host_id="here", now_ms=JOURNAL_NOW, watch=watch)
        return rules.session_dead(msgspec.structs.replace(lease, **changed), at, lock_free=lock_free)

    lease = Lease(
        session_id="s", ended=False, boot_id=boot, until_boot_ms=NOW + 1, host_id=host, until_ms=until, ttl_ms=10_000
    )
    assert found(NOW - 10_000) is death
    assert found(NOW - 10_000, ended=True) is Death.PROVEN
    by_time = Death.NO if death is Death.OVER else death
    assert found(NOW - 9_999) is found(NOW - 10_000, session_id="new") is by_time


def test_what_is_remembered_of_leases() -> None:
    first = rules.watch_leases(None, timeline="1", until_ms={"a": 5, "b": 5}, boot_ms=100)
    then = rules.watch_leases(first, timeline="1", until_ms={"a": 5, "b": 6, "c": 5}, boot_ms=200)
    assert then.seen == {"a": (5, 100), "b": (6, 200), "c": (5, 200)}
    # A renewal may be lost with the timeline before: what is seen again may not be the newest lease.
    promoted = rules.watch_leases(then, timeline="2", until_ms={"a": 5, "b": 6}, boot_ms=300)
    assert promoted.seen == {"a": (5, 300), "b": (6, 300)}


class Server:
    """A journal's clock that goes too fast or too slow and is set, in real milliseconds."""

    def __init__(self, rate: float, steps: list[tuple[int, int]], promotions: list[int]) -> None:
        self.rate = rate
        self.steps = steps
        self.promotions = promotions

    def now_ms(self, at_ms: int) -> int:
        return int(10**12 + at_ms * self.rate) + sum(by for when, by in self.steps if when <= at_ms)

    def timeline(self, at_ms: int) -> str:
        return str(sum(1 for when in self.promotions if when <= at_ms))


TTL_MS = 10_000
times = st.integers(0, 120_000)
jumps = st.one_of(st.integers(-60_000, 60_000), st.sampled_from([86_400_000, -86_400_000]))


@settings(max_examples=400, deadline=None)
@given(
    rate=st.floats(0.9, 1.1),
    steps=st.lists(st.tuples(times, jumps), max_size=4),
    promotions=st.lists(times, max_size=3),
    gaps=st.lists(st.integers(1, 9_000), min_size=1, max_size=40),
    looks=st.lists(st.tuples(st.integers(1, 6_000), st.integers(0, 800)), min_size=1, max_size=80),
)
def test_nobodys_lease_is_over_before_its_own_deadline(
    rate: float, steps: list[tuple[int, int]], promotions: list[int], gaps: list[int], looks: list[tuple[int, int]]
) -> None:
    """However the journal's clock goes: a session that renews in time is never found dead by time; and one that has
    stopped is found dead three leases after the clock is steady again, by one who looks every second."""
    server = Server(rate, steps, promotions)
    renewals = list(itertools.accumulate(gaps))
    watch: LeaseWatch | None = None
    at_ms, seen_dead = 0, False

    def judge(asked_ms: int, got_ms: int) -> Death:
        nonlocal watch
        read_ms = (asked_ms + got_ms) // 2
        renewed_ms = max((one for one in renewals if one <= read_ms), default=0)
        until_ms = server.now_ms(renewed_ms) + TTL_MS
        timeline = server.timeline(read_ms)
        watch = rules.watch_leases(watch, timeline=timeline, until_ms={"s": until_ms}, boot_ms=got_ms)
        lease = Lease(
            session_id="s",
            ended=False,
            boot_id="there",
            until_boot_ms=0,
            host_id="there",
            until_ms=until_ms,
            ttl_ms=TTL_MS,
        )
        now_ms = server.now_ms(read_ms)
        at = LookedAt(boot_id="here", boot_ms=asked_ms, host_id="here", now_ms=now_ms, watch=watch)
        death = rules.session_dead(lease, at, lock_free=None)
        if death is not Death.NO:
            assert read_ms >= renewed_ms + TTL_MS
        return death

    for wait_ms, trip_ms in looks:
        at_ms += wait_ms
        judge(at_ms, at_ms + trip_ms)
        at_ms += trip_ms
    calm_ms = max([at_ms, renewals[-1], *promotions, *(when for when, _ in steps)])
    for passed_ms in range(0, 3 * TTL_MS, 1_000):
        seen_dead |= judge(calm_ms + passed_ms, calm_ms + passed_ms + 20) is not Death.NO
    assert seen_dead


# copies


@pytest.mark.parametrize(
    ("incarnation", "newest", "stamp", "folded_ms", "older"),
    [
        (2, 50, 7, 0, False),
        (2, 51, 8, 0, False),
        (2, 49, 7, 0, True),
        (2, 49, None, 900, True),  # a number that was committed stays the newest, or below it
        (2, 80, None, 899, True),  # the writer's row is missing, and was not put together with another
        (2, 80, None, 900, False),
        (2, 80, 6, 0, True),  # put back, and grown past the mark since
        (2, 80, 6, 900, True),
        (1, 80, 7, 0, True),
        (3, 10, None, 0, False),  # restored as it should be
    ],
)
def test_an_older_copy_of_several_writers_is_recognized(
    incarnation: int, newest: int, stamp: int | None, folded_ms: int, older: bool
) -> None:
    mark = SeenCommit(incarnation=2, number=50, lane="l", stamp=7, at_ms=900)
    found = rules.is_older_copy(mark, incarnation=incarnation, newest=newest, stamp=stamp, folded_ms=folded_ms)
    assert found is older


# claims


@pytest.mark.parametrize("state", TaskState)
@pytest.mark.parametrize("holder_dead", [True, False])
def test_which_states_are_claimable_and_when(state: TaskState, holder_dead: bool) -> None:
    def at(due_ms: int) -> bool:
        return rules.claimable(state=state, due_ms=due_ms, holder_dead=holder_dead, now_ms=NOW)

    if state in rules.TIMED:
        assert (at(NOW), at(NOW + 1), at(NEVER_MS)) == (True, False, False)
    elif state is TaskState.RUNNING:
        assert at(NOW) is at(NEVER_MS) is holder_dead
    else:
        assert not at(0)


def decided(state: TaskState, crashes: int, *, alone: bool = False, progress: bool = False) -> tuple[Claimable, int]:
    decision = rules.decide_claim(
        state=state,
        due_ms=NOW,
        crashes=crashes,
        epoch=7,
        progress_epoch=7 if progress else 6,
        holder_dead=True,
        alone=alone,
        now_ms=NOW,
    )
    return decision.verdict, decision.crashes


def test_deaths_lead_from_company_to_solitude_to_the_bench() -> None:
    running = TaskState.RUNNING
    assert decided(running, 0) == (Claimable.TAKE, 1)
    assert decided(running, 1)[0] is Claimable.NO
    assert decided(running, 1, alone=True) == (Claimable.TAKE, 2)
    assert decided(running, 2) == (Claimable.POISON, 3)
    assert decided(running, 2, alone=True) == (Claimable.POISON, 3)


def test_progress_under_the_dead_epoch_forgives_what_was_before() -> None:
    assert decided(TaskState.RUNNING, 2, progress=True) == (Claimable.TAKE, 1)


def test_a_task_that_rested_counts_no_new_death() -> None:
    assert decided(TaskState.QUEUED, 0) == (Claimable.TAKE, 0)
    assert decided(TaskState.QUEUED, 2)[0] is Claimable.NO
    assert decided(TaskState.QUEUED, 2, alone=True) == (Claimable.TAKE, 2)


@given(st.integers(0, 2**62), st.integers(0, 2**23))
def test_epochs_only_rise(epoch: int, incarnation: int) -> None:
    if incarnation < epoch >> 32 or epoch & (2**32 - 1) == 2**32 - 1:
        with pytest.raises(InvariantViolated):
            rules.next_epoch(epoch, incarnation=incarnation)
    else:
        after = rules.next_epoch(epoch, incarnation=incarnation)
        assert after > epoch
        assert after >> 32 == incarnation


def test_the_first_epoch_and_the_one_after_a_restore() -> None:
    first = rules.next_epoch(0, incarnation=1)
    assert first == 1 << 32 | 1
    assert rules.next_epoch(first, incarnation=1) == 1 << 32 | 2
    assert rules.next_epoch(first, incarnation=4) == 4 << 32 | 2
    with pytest.raises(InvariantViolated):
        rules.next_epoch(2**32 - 1, incarnation=1)


@pytest.mark.parametrize("state", TaskState)
def test_only_the_holder_of_a_running_task_writes(state: TaskState) -> None:
    def check(*, epoch: int = 5, seq: int = 9) -> None:
        rules.check_hold(task_id=TASK, state=state, epoch=epoch, seq=seq, hold_epoch=5, hold_seq=9)

    if state is TaskState.RUNNING:
        check()
        with pytest.raises(InvariantViolated):
            check(seq=10)
    else:
        with pytest.raises(LeaseLost):
            check()
    with pytest.raises(LeaseLost):
        check(epoch=6)
    with pytest.raises(LeaseLost):
        check(epoch=6, seq=10)


def test_poison_is_told_with_a_question() -> None:
    entry = rules.poison_entry()
    assert entry.kind is RecordKind.RESTED
    assert (entry.body["state"], entry.body["why"]) == ("parked", "poison")
    assert entry.body["question"]
    one = poison_notice(TASK, rules.POISON_QUESTION, epoch=5, now_ms=NOW)
    two = poison_notice(TASK, rules.POISON_QUESTION, epoch=6, now_ms=NOW)
    assert one.notice_id != two.notice_id
    assert (one.kind, one.task_id, one.at_ms) == ("poison", TASK, NOW)
    damaged = task_damaged_notice(TASK, "record 3 was changed", epoch=5, now_ms=NOW)
    assert "record 3 was changed" in damaged.text


# rests and drops


@pytest.mark.parametrize(
    ("state", "due_ms", "expected"),
    [
        (TaskState.QUEUED, None, NOW),
        (TaskState.QUEUED, NOW + 5, NOW + 5),
        (TaskState.SLEEPING, NOW + 5, NOW + 5),
        (TaskState.WAITING, NOW + 5, NOW + 5),
        (TaskState.SLEEPING, None, NEVER_MS),
        (TaskState.WAITING, None, NEVER_MS),
        (TaskState.PARKED, NOW + 5, NEVER_MS),
        (TaskState.SUCCEEDED, NOW + 5, NEVER_MS),
        (TaskState.RUNNING, NOW + 5, 77),
    ],
)
def test_when_a_task_is_due_after_a_change(state: TaskState, due_ms: int | None, expected: int) -> None:
    change = Change(state=state, due_ms=due_ms)
    assert rules.due_after_change(change, due_ms=77, now_ms=NOW) == expected


def test_an_orderly_rest_forgives_crashes() -> None:
    assert rules.crashes_after_change(Change(state=TaskState.SLEEPING), 2) == 0
    assert rules.crashes_after_change(Change(state=TaskState.RUNNING), 2) == 2


@pytest.mark.parametrize(("state", "kind"), list(itertools.product(TaskState, InboxKind)))
def test_what_a_drop_does(state: TaskState, kind: InboxKind) -> None:
    woken = rules.wake(state, kind, crashes=3, changed_ms=NOW)
    retried = kind is InboxKind.RETRY
    if state in rules.RESTING or (state is TaskState.FAILED and retried):
        assert woken is not None
        assert (woken.state, woken.due_ms) == (TaskState.QUEUED, NOW)
        assert woken.crashes == (0 if retried else 2)
    else:
        assert woken is None
    asked = rules.asks_cancel(state, kind)
    assert asked is (kind is InboxKind.CANCEL and state not in ENDED)


# retention


@pytest.mark.parametrize("state", TaskState)
def test_only_ended_tasks_without_open_windows_are_erased(state: TaskState) -> None:
    def erasable(*, ended_ms: int = 0, keep_until_ms: int = 0) -> bool:
        return rules.erasable(state=state, ended_ms=ended_ms, keep_until_ms=keep_until_ms, keep_ms=100, now_ms=NOW)

    over = state in ENDED
    assert erasable() is over
    assert not erasable(ended_ms=NOW - 100)
    assert erasable(ended_ms=NOW - 101) is over
    assert not erasable(keep_until_ms=NOW + 1)
    assert erasable(keep_until_ms=NOW) is over


def test_a_tombstone_outlives_its_time_and_every_window() -> None:
    def over(*, erased_ms: int, keep_until_ms: int = 0) -> bool:
        return rules.tombstone_over(erased_ms=erased_ms, keep_until_ms=keep_until_ms, tombstone_ms=100, now_ms=NOW)

    assert not over(erased_ms=NOW - 100)
    assert over(erased_ms=NOW - 101)
    assert not over(erased_ms=0, keep_until_ms=NOW + 1)


# edges


def test_never_is_the_largest_number_that_the_journal_keeps() -> None:
    """A due time beyond it would be refused by SQLite, a smaller one would come one day."""
    assert NEVER_MS == 0x7FFF_FFFF_FFFF_FFFF


@pytest.mark.parametrize(
    ("state", "due_ms", "holder_dead"),
    [
        (TaskState.QUEUED, NOW + 1, True),
        (TaskState.RUNNING, 0, False),
        (TaskState.PARKED, 0, True),
        (TaskState.SUCCEEDED, 0, True),
        (TaskState.FAILED, 0, True),
        (TaskState.CANCELLED, 0, True),
    ],
)
@pytest.mark.parametrize("crashes", [0, 2, 3])
def test_what_is_not_claimable_is_left_as_it_is(state: TaskState, due_ms: int, holder_dead: bool, crashes: int) -> None:
    assert not rules.claimable(state=state, due_ms=due_ms, holder_dead=holder_dead, now_ms=NOW)
    found = rules.decide_claim(
        state=state,
        due_ms=due_ms,
        crashes=crashes,
        epoch=1,
        progress_epoch=0,
        holder_dead=holder_dead,
        alone=True,
        now_ms=NOW,
    )
    assert found == rules.Decision(verdict=Claimable.NO, crashes=crashes)


@pytest.mark.parametrize(("keep_until_ms", "over"), [(NOW, True), (NOW + 1, False)])
def test_a_tombstone_stays_as_long_as_a_key_window(keep_until_ms: int, over: bool) -> None:
    found = rules.tombstone_over(erased_ms=0, keep_until_ms=keep_until_ms, tombstone_ms=NOW - 1, now_ms=NOW)
    assert found is over


def test_a_blob_has_at_most_sixteen_mebibytes() -> None:
    rules.check_blob(16_777_216)
    with pytest.raises(TooLarge, match="16,777,216"):
        rules.check_blob(16_777_217)
