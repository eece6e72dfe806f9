"""The table of answers: what each status proves, for each effect class."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.answers import (
    REFUSALS,
    Meaning,
    MeansBusy,
    MeansDone,
    MeansKeyReused,
    MeansRefused,
    MeansUnknown,
    check_refused_on,
    read_answer,
    retry_after_s,
)
from holdfast.core.effect import Effect, Fenced, Idempotent, Keyed, Queryable, Read, Transactional, Unrepeatable
from holdfast.errors import Misuse

KEYED = Keyed(window_s=86_400, fingerprint="checked", refusals_stored=True)
BLIND = Keyed(window_s=86_400, fingerprint="ignored", refusals_stored=False)
KEYLESS: list[Effect] = [Queryable(), Idempotent(), Unrepeatable()]
EFFECTFUL: list[Effect] = [KEYED, BLIND, Fenced(), *KEYLESS]
READING: list[Effect] = [Read(), Transactional()]
ALL = [*EFFECTFUL, *READING]
LATER = {"retry-after": "7"}


def name(effect: Effect) -> str:
    return effect.name


@pytest.mark.parametrize("effect", ALL, ids=name)
@pytest.mark.parametrize("status", [200, 201, 202, 204, 299])
def test_a_2xx_is_a_success_for_every_class(effect: Effect, status: int) -> None:
    assert read_answer(effect, status, {}) == MeansDone()


@pytest.mark.parametrize("effect", ALL, ids=name)
@pytest.mark.parametrize("status", [400, 401, 402, 403, 404, 405, 413, 415])
def test_a_plain_refusal_is_a_refusal_for_every_class(effect: Effect, status: int) -> None:
    assert read_answer(effect, status, {}) == MeansRefused()


@pytest.mark.parametrize("effect", ALL, ids=name)
@pytest.mark.parametrize("status", [301, 303, 307, 308, 408, 425, 499, 500, 502, 504, 599])
def test_what_does_not_say_is_unknown(effect: Effect, status: int) -> None:
    """Nor do headers or declarations change that."""
    assert isinstance(read_answer(effect, status, {}), MeansUnknown)
    assert isinstance(read_answer(effect, status, LATER), MeansUnknown)


@pytest.mark.parametrize("effect", [KEYED, BLIND, Fenced()], ids=name)
def test_409_for_a_key_means_wait_and_never_failure(effect: Effect) -> None:
    assert read_answer(effect, 409, {}) == MeansBusy(retry_after_s=1.0)
    assert read_answer(effect, 409, LATER) == MeansBusy(retry_after_s=7.0)
    assert read_answer(effect, 409, {}, refused_on=frozenset({409})) == MeansBusy(retry_after_s=1.0)


@pytest.mark.parametrize("effect", [KEYED, BLIND, Fenced()], ids=name)
def test_422_for_a_key_means_another_body(effect: Effect) -> None:
    assert read_answer(effect, 422, {}) == MeansKeyReused()


def test_422_can_be_declared_a_refusal_only_where_no_fingerprint_is_checked() -> None:
    declared = frozenset({422})
    assert read_answer(BLIND, 422, {}, refused_on=declared) == MeansRefused()
    assert read_answer(KEYED, 422, {}, refused_on=declared) == MeansKeyReused()
    assert read_answer(Fenced(), 422, {}, refused_on=declared) == MeansKeyReused()


@pytest.mark.parametrize("effect", KEYLESS, ids=name)
@pytest.mark.parametrize("status", [409, 412, 422, 423, 429])
def test_without_a_key_a_conflict_is_unknown_unless_the_tool_declares_it(effect: Effect, status: int) -> None:
    assert isinstance(read_answer(effect, status, LATER), MeansUnknown)
    assert read_answer(effect, status, {}, refused_on=frozenset({status})) == MeansRefused()


@pytest.mark.parametrize("status", [429, 503])
def test_come_back_later_is_busy_only_where_a_repeat_is_harmless(status: int) -> None:
    for effect in (KEYED, Fenced(), *READING):
        assert read_answer(effect, status, LATER) == MeansBusy(retry_after_s=7.0)
        assert isinstance(read_answer(effect, status, {}), MeansUnknown)
    for effect in KEYLESS:
        assert isinstance(read_answer(effect, status, LATER), MeansUnknown)


def test_a_stale_fence_is_no_refusal() -> None:
    """The owner draws a higher fence and sends again."""
    assert isinstance(read_answer(Fenced(), 412, {}), MeansUnknown)
    assert isinstance(read_answer(Fenced(), 412, {}, refused_on=frozenset({412})), MeansUnknown)


@given(effect=st.sampled_from(EFFECTFUL), status=st.integers(100, 999), later=st.booleans())
def test_only_listed_statuses_close_a_step(effect: Effect, status: int, later: bool) -> None:
    """Nothing outside the table is taken for a success or a refusal."""
    answer: Meaning = read_answer(effect, status, LATER if later else {})
    assert isinstance(answer, MeansDone) == (200 <= status <= 299)
    assert isinstance(answer, MeansRefused) == (status in REFUSALS)


@pytest.mark.parametrize("status", [99, 200, 302, 399, 408, 425, 499, 500, 503])
def test_a_status_that_may_hide_an_effect_cannot_be_declared(status: int) -> None:
    with pytest.raises(Misuse, match=str(status)):
        check_refused_on([404, status])


def test_declared_statuses_are_kept() -> None:
    assert check_refused_on([422, 409, 422]) == frozenset({409, 422})


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, None),
        ({"retry-after": ""}, None),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "-1"}, None),
        ({"retry-after": "1.5"}, None),
        ({"retry-after": "\u0661"}, None),
        ({"retry-after": "0"}, 0.0),
        ({"retry-after": "120"}, 120.0),
        ({"retry-after": "999999999"}, 86_400.0),
        ({"retry-after": "99999999999999999999"}, None),
    ],
)
def test_retry_after_in_seconds(headers: dict[str, str], expected: float | None) -> None:
    assert retry_after_s(headers) == expected


@pytest.mark.parametrize(
    ("until", "sent", "expected"),
    [
        ("Sun, 15 Nov 2026 10:00:30 GMT", "Sun, 15 Nov 2026 10:00:00 GMT", 30.0),
        ("Sun, 15 Nov 2026 09:59:00 GMT", "Sun, 15 Nov 2026 10:00:00 GMT", 0.0),
        ("Sun, 15 Nov 2026 10:00:30 GMT", "", None),
        ("Sun, 31 Feb 2026 10:00:30 GMT", "Sun, 15 Nov 2026 10:00:00 GMT", None),
        ("Sun, 15 Foo 2026 10:00:30 GMT", "Sun, 15 Nov 2026 10:00:00 GMT", None),
        ("Sat, 15 Nov 3026 10:00:30 GMT", "Sun, 15 Nov 2026 10:00:00 GMT", 86_400.0),
    ],
)
def test_a_retry_date_counts_from_the_answers_own_date(until: str, sent: str, expected: float | None) -> None:
    assert retry_after_s({"retry-after": until, "date": sent}) == expected
