"""The pure decisions: what an error means, what is held elsewhere, who is asked next."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import (
    BadInput,
    BadSettings,
    ContextTooLong,
    HoldfastError,
    ModelKeyRefused,
    ModelNotFound,
    ModelOverloaded,
    ModelQuotaSpent,
    ModelRateLimited,
    ModelRejected,
    ModelUnavailable,
    ReplyGarbled,
    Retryable,
    StateHeldElsewhere,
    Terminal,
    Unresolved,
)
from holdfast.runtime.models import endpoints, health
from holdfast.runtime.models.endpoint import Endpoint
from holdfast.runtime.models.health import Breaker, EndpointHealth
from holdfast.runtime.models.held_state import SURFACES, check_held_state, checked_surfaces
from holdfast.runtime.models.reply import Failure
from holdfast.runtime.models.request import Request, checked_request
from holdfast.runtime.models.troubles import ModelError, about_the_request, read_error

Json = Any  # what a provider says


def told(**inner: Json) -> Json:
    return {"error": inner}


CASES: list[tuple[int, Json, type[ModelError]]] = [
    (400, told(message="Invalid 'messages'", type="invalid_request_error"), ModelRejected),
    (400, told(message="x", code="context_length_exceeded"), ContextTooLong),
    (400, told(message="prompt is too long: 5 tokens > 4 maximum", type="invalid_request_error"), ContextTooLong),
    (400, {"object": "error", "message": "This model's maximum context length is 8 tokens"}, ContextTooLong),
    (400, told(message="Your credit balance is too low to access the API"), ModelQuotaSpent),
    (401, told(message="no", code="invalid_api_key"), ModelKeyRefused),
    (402, told(type="billing_error", message="pay"), ModelQuotaSpent),
    (403, told(type="permission_error", message="no"), ModelKeyRefused),
    (404, told(code="model_not_found", message="no"), ModelNotFound),
    (404, "<html>nothing here</html>", ModelNotFound),
    (408, None, ModelUnavailable),
    (409, told(type="conflict_error"), ModelUnavailable),
    (413, told(type="request_too_large"), ContextTooLong),
    (422, told(message="bad"), ModelRejected),
    (429, told(code="rate_limit_exceeded", message="slow"), ModelRateLimited),
    (429, told(type="rate_limit_error", message="slow"), ModelRateLimited),
    (429, told(code="insufficient_quota", message="pay"), ModelQuotaSpent),
    (
        429,
        told(type="rate_limit_error", message="x", details={"error_code": "enforced_spend_limit_reached"}),
        ModelQuotaSpent,
    ),
    (429, told(message="You exceeded the context length allowed per minute"), ModelRateLimited),
    (500, told(type="api_error", message="oops"), ModelUnavailable),
    (502, "<html>502</html>", ModelUnavailable),
    (503, told(message="overloaded"), ModelOverloaded),
    (504, None, ModelUnavailable),
    (529, told(type="overloaded_error"), ModelOverloaded),
    (301, None, ModelRejected),
    (418, None, ModelRejected),
]


@pytest.mark.parametrize(
    ("status", "body", "kind"), CASES, ids=[f"{s}-{k.code}-{i}" for i, (s, _, k) in enumerate(CASES)]
)
def test_what_an_error_means(status: int, body: Json, kind: type[ModelError]) -> None:
    raw = b"" if body is None else body.encode() if isinstance(body, str) else json.dumps(body).encode()
    error = read_error(status, {}, raw)
    assert type(error) is kind
    assert not isinstance(error, ReplyGarbled)
    assert error.status == status
    assert str(status) in error.message


def test_every_kind_says_by_its_class_whether_to_try_again() -> None:
    assert issubclass(ModelUnavailable, Retryable)
    assert issubclass(ModelRejected, Terminal)
    assert issubclass(ReplyGarbled, Unresolved)
    own = (ModelKeyRefused, ModelNotFound, ModelQuotaSpent)
    assert not any(about_the_request(kind("x")) for kind in own)
    assert all(about_the_request(kind("x")) for kind in (ModelRejected, ContextTooLong))
    assert not about_the_request(ModelUnavailable("x"))
    assert not about_the_request(ReplyGarbled("x", reason="cut"))


@pytest.mark.parametrize(
    ("headers", "wait_s"),
    [
        ({"retry-after": "7"}, 7.0),
        ({"retry-after-ms": "1500", "retry-after": "7"}, 1.5),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "-3"}, None),
        ({"retry-after-ms": "nan"}, None),
        ({"retry-after": "Sun, 15 Nov 2026 10:00:30 GMT", "date": "Sun, 15 Nov 2026 10:00:00 GMT"}, 30.0),
        ({}, None),
    ],
)
def test_how_long_to_wait(headers: dict[str, str], wait_s: float | None) -> None:
    error = read_error(429, headers, b"")
    assert isinstance(error, ModelRateLimited)
    assert error.retry_after_s == wait_s


ODD = st.one_of(
    st.binary(max_size=30),
    st.text(max_size=5).map(lambda text: json.dumps({"error": {"message": text, "type": text, "code": text}}).encode()),
    st.sampled_from([b"[]", b"null", b'{"error":[1]}', b'{"error":{"code":5,"details":[]}}']),
)


@settings(max_examples=100)
@given(st.integers(300, 599), ODD)
def test_no_answer_is_too_odd_for_a_meaning(status: int, raw: bytes) -> None:
    error = read_error(status, {}, raw)
    assert isinstance(error, ModelUnavailable | ModelRejected)
    assert len(error.message) < 500
    assert error.message.isprintable()


# State that the provider holds.


def leaning(*, extra: Json = None, value: Json = None) -> Request:
    messages: list[Json] = [{"role": "user", "parts": [{"type": "text", "text": "x"}]}]
    if value is not None:
        opaque = {"type": "opaque", "wire": "anthropic", "value": value}
        messages.append({"role": "assistant", "parts": [opaque]})
    return checked_request(model="m", messages=messages, settings={"extra": extra or {}})


HELD: list[tuple[Request, str]] = [
    (leaning(extra={"openai": {"store": True}}), "stored-reply"),
    (leaning(extra={"openai": {"previous_response_id": "resp_1"}}), "stored-reply"),
    (leaning(extra={"openai": {"background": True}}), "stored-reply"),
    (leaning(extra={"openai": {"conversation": "conv_1"}}), "thread"),
    (leaning(extra={"openai": {"thread_id": "t"}}), "thread"),
    (leaning(extra={"openai": {"prompt": {"id": "pmpt_1"}}}), "stored-prompt"),
    (leaning(extra={"openai": {"web": {"file_ids": ["f"]}}}), "uploaded-file"),
    (leaning(extra={"anthropic": {"container": "c_1"}}), "container"),
    (leaning(extra={"anthropic": {"metadata": [{"x": {"container_id": "c"}}]}}), "container"),
    (leaning(value={"type": "container_upload", "file_id": "f"}), "container"),
    (leaning(value={"type": "document", "source": {"type": "file", "file_id": "f"}}), "uploaded-file"),
    (leaning(value={"type": "code_execution_tool_result", "content": {}}), "container"),
]


@pytest.mark.parametrize(("asked", "surface"), HELD, ids=[f"{i}-{s}" for i, (_, s) in enumerate(HELD)])
def test_state_held_elsewhere_is_refused_unless_it_is_named(asked: Request, surface: str) -> None:
    with pytest.raises(StateHeldElsewhere, match=surface) as raised:
        check_held_state(asked, allowed=())
    assert "allow_state" in raised.value.hint
    others = SURFACES.keys() - {surface}
    with pytest.raises(StateHeldElsewhere):
        check_held_state(asked, allowed=others)
    assert surface in check_held_state(asked, allowed=SURFACES)


@pytest.mark.parametrize(
    "asked",
    [
        leaning(),
        leaning(extra={"openai": {"store": False, "previous_response_id": None, "seed": 1}}),
        leaning(
            extra={
                "openai": {
                    "response_format": {
                        "json_schema": {"schema": {"properties": {"container": {}, "file_id": {}, "prompt": {}}}}
                    }
                }
            }
        ),
        leaning(extra={"anthropic": {"cache_control": {"type": "ephemeral"}}}),
        leaning(value={"type": "thinking", "thinking": "a file_id, a container", "signature": "s"}),
        leaning(value={"type": "server_tool_use", "name": "s", "input": {"file_id": "people's"}}),
    ],
)
def test_what_is_not_held_elsewhere_passes(asked: Request) -> None:
    assert check_held_state(asked, allowed=()) == ()


def test_a_surface_that_is_none_is_refused() -> None:
    with pytest.raises(BadInput):
        checked_surfaces(["container", "cellar"])


# EndpointHealth.


BREAKER = Breaker(failures_max=3, rest_ms=1_000, rest_ms_max=8_000, probe_ms=500)


def test_three_failures_open_it_and_one_probe_closes_it() -> None:
    now, one = 10_000, EndpointHealth()
    for _ in range(2):
        one = health.failed(one, now, breaker=BREAKER)
        assert health.find_wait_ms(one, now) is None
    one = health.failed(one, now, breaker=BREAKER)
    assert health.find_wait_ms(one, now) == 11_000
    assert health.find_wait_ms(one, 11_000) is None
    probing = health.asked(one, 11_000, breaker=BREAKER)
    assert health.find_wait_ms(probing, 11_000) == 11_500
    assert health.find_wait_ms(health.given_up(probing), 11_001) is None
    assert health.find_wait_ms(probing, 11_500) is None
    assert health.replied(probing) == EndpointHealth()


def test_each_rest_is_twice_the_last_up_to_the_limit() -> None:
    now, one, rests = 0, EndpointHealth(), list[int]()
    for _ in range(40):
        one = health.failed(one, now, breaker=BREAKER, at_once=True)
        rests.append(one.rests_until_ms - now)
        now = one.rests_until_ms
    assert rests[:5] == [1_000, 2_000, 4_000, 8_000, 8_000]
    assert set(rests[5:]) == {8_000}


def test_a_rate_limit_is_a_rest_and_no_failure() -> None:
    one = health.limited(EndpointHealth(failures=2), 100, retry_after_s=2.5)
    assert health.find_wait_ms(one, 100) == 2_600
    assert (one.failures, one.open) == (0, False)
    shorter = health.limited(one, 200, retry_after_s=0)
    assert shorter.rests_until_ms == 2_600
    assert health.limited(EndpointHealth(), 0, retry_after_s=None).rests_until_ms == 1_000


EVENTS = st.lists(
    st.tuples(st.sampled_from(["failed", "at_once", "limited", "replied", "given_up"]), st.integers(0, 3_000)),
    max_size=30,
)


@settings(max_examples=200)
@given(EVENTS)
def test_laws_of_health(events: list[tuple[str, int]]) -> None:
    """Never shut for longer than the limit; one probe at a time; a reply mends all."""
    now, one = 0, EndpointHealth()
    for kind, pause in events:
        now += pause
        wait = health.find_wait_ms(one, now)
        assert wait is None or now < wait <= now + max(BREAKER.rest_ms_max, 2_000)
        if wait is not None:
            continue
        one = health.asked(one, now, breaker=BREAKER)
        if one.open:
            assert health.find_wait_ms(one, now) is not None
        match kind:
            case "failed":
                before = one
                one = health.failed(one, now, breaker=BREAKER)
                assert one.open == (before.open or before.failures + 1 >= BREAKER.failures_max)
            case "at_once":
                one = health.failed(one, now, breaker=BREAKER, at_once=True)
                assert health.find_wait_ms(one, now) is not None
            case "limited":
                one = health.limited(one, now, retry_after_s=2.0)
                assert not one.open
            case "replied":
                one = health.replied(one)
                assert health.find_wait_ms(one, now) is None
            case _:
                one = health.given_up(one)
                assert health.find_wait_ms(one, now) is None


# MessageOrder and verdict.


def end(name: str, **more: Json) -> Endpoint:
    return Endpoint(name=name, url="http://127.0.0.1:1/v1", wire="openai", **more)


def test_the_own_region_comes_first_and_the_rest_keeps_its_order() -> None:
    ends = [end("a", region="us"), end("b", region="eu"), end("c"), end("d", region="eu")]
    assert [one.name for one in endpoints.in_order(ends, region="eu")] == ["b", "d", "a", "c"]
    assert [one.name for one in endpoints.in_order(ends, region="")] == ["a", "b", "c", "d"]


def verdict(*errors: ModelError, resting_s: tuple[float, ...] = ()) -> HoldfastError:
    pairs = [(end(f"e{i}"), error) for i, error in enumerate(errors)]
    failures: list[Failure] = [endpoints.as_failure(a, b, text_chars=0) for a, b in pairs]
    failures += [endpoints.as_resting(end("r"), wait_s=one) for one in resting_s]
    found = endpoints.verdict(failures, {one.name: error for one, error in pairs})
    assert len(found.failures) == len(failures)
    return found


def test_the_verdict_says_most_about_trying_again() -> None:
    limited = ModelRateLimited("x", retry_after_s=9)
    busy = ModelOverloaded("x", retry_after_s=4)
    cut, key = ReplyGarbled("x", reason="cut"), ModelKeyRefused("x")
    assert type(verdict(limited, limited)) is ModelRateLimited
    assert type(verdict(busy)) is ModelOverloaded
    mixed = verdict(key, limited, cut, busy)
    assert type(mixed) is ModelUnavailable
    assert mixed.retry_after_s == 4
    assert verdict(key, cut) is cut
    assert verdict(key, ModelNotFound("y")) is key
    resting = verdict(resting_s=(5, 3))
    assert type(resting) is ModelUnavailable
    assert resting.retry_after_s == 3
    assert type(verdict(key, resting_s=(5,))) is ModelUnavailable


def test_affinity_is_another_for_each_endpoint_and_names_nobody() -> None:
    one, other = (end("a", affinity_header="X-S", cache_header="X-C"), end("b", affinity_header="X-S"))
    first = endpoints.affinity_of(one, session="task-7", kept={})
    assert first == endpoints.affinity_of(one, session="task-7", kept={})
    assert first["X-S"] != endpoints.affinity_of(other, session="task-7", kept={})["X-S"]
    assert "task" not in first["X-S"]
    kept = {"affinity": "sticky", "cache": "c1"}
    assert endpoints.affinity_of(one, session="s", kept=kept) == {"X-S": "sticky", "X-C": "c1"}
    assert endpoints.affinity_of(other, session="s", kept=kept) == {"X-S": "sticky"}
    assert endpoints.affinity_of(one, session="", kept={}) == {}


# Endpoints as values.


@pytest.mark.parametrize(
    "more",
    [
        {"name": "a b"},
        {"wire": "gemini"},
        {"url": "ftp://x/"},
        {"url": "https://x/v1?version=1"},
        {"url": "https://user:pass@x/"},
        {"url": "http://far.example/v1", "key": lambda: "k"},
    ],
    ids=["name", "wire", "scheme", "query", "credentials", "key in the clear"],
)
def test_an_endpoint_that_cannot_work_or_would_tell_its_key_is_refused(more: Json) -> None:
    good: Json = {"name": "a", "url": "https://x/v1", "wire": "openai"}
    Endpoint(**good)
    with pytest.raises(BadSettings):
        Endpoint(**{**good, **more})
    keyed: Json = {**good, "key": lambda: "k", "url": "http://[::1]/v1"}
    Endpoint(**keyed)
    keyed |= {"url": "http://far.example/v1", "plain_http": True}
    Endpoint(**keyed)
