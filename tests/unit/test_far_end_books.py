"""The parts of a far end that need no socket: key table, key header, faults, counting."""

from __future__ import annotations

import pytest

from holdfast.downstream.faults import BadFault, Fault, FaultKind, Faults, parse_fault
from holdfast.downstream.keys import BadKey, InFlight, KeyEntry, KeyTable, Replay, Reused, parse_key
from holdfast.downstream.ledger import Ledger, Page, base_ordinal


def table(*, window_s: float = 10.0) -> KeyTable[str]:
    return KeyTable[str](window_s=window_s, fingerprint="checked")


def begun(keys: KeyTable[str], *, now_s: float = 0.0) -> KeyEntry[str]:
    entry = keys.begin("k", fingerprint="a", now_s=now_s)
    assert isinstance(entry, KeyEntry)
    return entry


def test_a_key_is_in_flight_until_it_is_answered_and_then_replayed() -> None:
    keys = table()
    entry = begun(keys)
    assert isinstance(keys.begin("k", fingerprint="a", now_s=1), InFlight)
    keys.finish(entry, "done")
    assert keys.begin("k", fingerprint="a", now_s=2) == Replay(answer="done")
    assert isinstance(keys.begin("k", fingerprint="b", now_s=2), Reused)


def test_a_window_runs_from_the_first_request_and_then_the_key_is_new() -> None:
    keys = table(window_s=10)
    keys.finish(begun(keys, now_s=0), "done")
    assert isinstance(keys.begin("k", fingerprint="a", now_s=9.9), Replay)
    begun(keys, now_s=10)


def test_a_key_in_flight_does_not_expire() -> None:
    keys = table(window_s=10)
    begun(keys)
    assert isinstance(keys.begin("k", fingerprint="a", now_s=1_000), InFlight)


def test_a_forgotten_key_is_free_and_an_old_holder_cannot_free_a_new_one() -> None:
    keys = table(window_s=10)
    old = begun(keys)
    keys.finish(old, "done")
    new = begun(keys, now_s=11)
    keys.forget(old)
    assert isinstance(keys.begin("k", fingerprint="a", now_s=12), InFlight)
    keys.forget(new)
    begun(keys, now_s=12)


@pytest.mark.parametrize(("values", "key"), [([], None), (["a-1"], "a-1"), (['"a-1"'], "a-1")])
def test_a_key_header_is_read_bare_or_quoted(values: list[str], key: str | None) -> None:
    assert parse_key(values) == key


@pytest.mark.parametrize("values", [[""], ['""'], ["a b"], ['a"b'], ["\u00e9"], ["x" * 256], ["a", "a"]])
def test_a_bad_key_header_is_refused(values: list[str]) -> None:
    with pytest.raises(BadKey):
        parse_key(values)


def test_a_fault_lets_some_pass_then_fires_n_times() -> None:
    faults = Faults([Fault(kind=FaultKind.RESET, n=2, skip=1)])
    assert [faults.draw("effect") is not None for _ in range(5)] == [False, True, True, False, False]
    assert faults.draw("lookup") is None


def test_a_fault_by_chance_is_the_same_for_the_same_seed() -> None:
    def drawn(seed: int) -> list[bool]:
        fault = Fault(kind=FaultKind.RESET, n=None, probability=0.5, seed=seed)
        faults = Faults([fault])
        return [faults.draw("effect") is not None for _ in range(64)]

    assert drawn(1) == drawn(1) != drawn(2)
    assert 10 < sum(drawn(1)) < 54


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        {},
        {"kind": "explode"},
        {"kind": "reset", "m": 1},
        {"kind": "reset", "n": 0},
        {"kind": "reset", "n": True},
        {"kind": "reset", "n": "1"},
        {"kind": "late", "seconds": -1},
        {"kind": "reset", "probability": 2},
        {"kind": "refuse", "status": 200},
        {"kind": "hold", "when": "never"},
        {"kind": "hold", "on": "moon"},
        {"kind": 1},
    ],
)
def test_a_fault_that_makes_no_sense_is_refused(value: object) -> None:
    with pytest.raises(BadFault):
        parse_fault(value)


def test_a_fault_survives_its_way_as_json() -> None:
    fault = Fault(kind=FaultKind.LATE, n=None, seconds=1.5, open=True, on="lookup")
    assert parse_fault(fault.to_json()) == fault


@pytest.mark.parametrize(
    ("step", "base"),
    [
        ("4", "4"),
        ("4.r1", "4"),
        ("4.2.1", "4.2.1"),
        ("4.2.1.r3", "4.2.1"),
        ("4.c1", "4.c1"),
        ("4.c1.r2", "4.c1"),
        ("@charge-1", "@charge-1"),
        ("@r1.r1", "@r1"),
    ],
)
def test_a_retry_slot_stands_for_its_step(step: str, base: str) -> None:
    assert base_ordinal(step) == base


def written(kind: str, *writes: tuple[str, str, str]) -> Page:
    """Books after these writes of (step, resource, body)."""
    ledger = Ledger(kind=kind, prefix="ef", log=None)
    for step, resource, body in writes:
        seen = ledger.arrived(method="PUT", path="/", at_ms=0)
        seen.task, seen.step, seen.body_sha256 = "T", step, body
        ledger.done(seen, at_ms=0, resource=resource, body={})
    return ledger.page({})


def test_a_step_done_again_in_a_retry_slot_is_a_duplicate() -> None:
    page = written("keyed", ("1", "", "x"), ("1.r1", "", "y"), ("2", "", "x"), ("1.c1", "", "z"))
    assert page.duplicates == 1
    assert page.by_base == {"T/1": 2, "T/2": 1, "T/1.c1": 1}


def test_an_idempotent_repeat_counts_only_where_it_changed_the_end_state() -> None:
    assert written("idempotent", ("1", "a", "x"), ("1", "a", "x")).duplicates == 0
    assert written("idempotent", ("1", "a", "x"), ("2", "b", "x"), ("1", "a", "x")).duplicates == 0
    assert written("idempotent", ("1", "a", "x"), ("1", "a", "y")).duplicates == 1
    assert written("idempotent", ("1", "a", "x"), ("2", "a", "y"), ("1", "a", "x")).duplicates == 1
