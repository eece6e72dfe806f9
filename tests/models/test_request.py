"""What may be asked, and the bytes it becomes: the same value, the same bytes."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.core import values
from holdfast.errors import BadInput, BadValue, TooLarge
from holdfast.runtime.models.endpoint import WIRE_FORMS
from holdfast.runtime.models.request import Request, checked_request
from holdfast.testing.model_server.asked import Asked, read_anthropic, read_openai

Json = Any  # what a test looks into
TOOL = {
    "name": "search",
    "description": "Find flights.",
    "parameters": {"type": "object", "properties": {"q": {"type": "string"}}},
}
TALK: list[Json] = [
    {"role": "system", "parts": [{"type": "text", "text": "Be brief."}]},
    {"role": "user", "parts": [{"type": "text", "text": "a trip"}, {"type": "text", "text": "!"}]},
    {
        "role": "assistant",
        "parts": [
            {
                "type": "opaque",
                "wire": "anthropic",
                "value": {"type": "thinking", "thinking": "hm", "signature": "c2ln"},
            },
            {"type": "text", "text": "I look."},
            {"type": "tool_call", "ref": "s1-1", "tool": "search", "arguments": '{"q": "LIS"}'},
            {"type": "tool_call", "ref": "s1-2", "tool": "search", "arguments": "{}"},
        ],
    },
    {
        "role": "tool",
        "parts": [
            {"type": "tool_result", "ref": "s1-2", "text": "two"},
            {"type": "tool_result", "ref": "s1-1", "text": "gone", "failed": True},
        ],
    },
    {"role": "user", "parts": [{"type": "text", "text": "and?"}]},
]


def request(**more: Json) -> Request:
    given: Json = {"model": "m", "messages": TALK, "tools": [TOOL], **more}
    return checked_request(**given)


def body(wire: str, asked: Request, *, stream: bool = False) -> Json:
    return json.loads(WIRE_FORMS[wire].encode(asked, stream=stream))


def test_a_talk_as_chat_completions() -> None:
    made = body("openai", request(settings={"max_tokens": 5, "temperature": 1.0, "stop": ["X"]}))
    assert made == {
        "model": "m",
        "max_completion_tokens": 5,
        "temperature": 1,
        "stop": ["X"],
        "tools": [{"type": "function", "function": TOOL}],
        "messages": [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": [{"type": "text", "text": "a trip"}, {"type": "text", "text": "!"}]},
            {
                "role": "assistant",
                "content": "I look.",
                "tool_calls": [
                    {"id": "s1-1", "type": "function", "function": {"name": "search", "arguments": '{"q": "LIS"}'}},
                    {"id": "s1-2", "type": "function", "function": {"name": "search", "arguments": "{}"}},
                ],
            },
            {"role": "tool", "tool_call_id": "s1-2", "content": "two"},
            {"role": "tool", "tool_call_id": "s1-1", "content": "gone"},
            {"role": "user", "content": "and?"},
        ],
    }


def test_a_talk_as_messages() -> None:
    made = body("anthropic", request(settings={"stop": ["X"], "top_p": 0.5, "cache_key": "k"}))
    assert made == {
        "model": "m",
        "max_tokens": 4096,
        "top_p": 0.5,
        "stop_sequences": ["X"],
        "tools": [{"name": "search", "description": "Find flights.", "input_schema": TOOL["parameters"]}],
        "system": [{"type": "text", "text": "Be brief."}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "a trip"}, {"type": "text", "text": "!"}]},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "hm", "signature": "c2ln"},
                    {"type": "text", "text": "I look."},
                    {"type": "tool_use", "id": "s1-1", "name": "search", "input": {"q": "LIS"}},
                    {"type": "tool_use", "id": "s1-2", "name": "search", "input": {}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "s1-2", "content": "two"},
                    {"type": "tool_result", "tool_use_id": "s1-1", "content": "gone", "is_error": True},
                    {"type": "text", "text": "and?"},
                ],
            },
        ],
    }


@pytest.mark.parametrize(
    ("choice", "openai", "anthropic"),
    [
        ("none", "none", {"type": "none"}),
        ("required", "required", {"type": "any", "disable_parallel_tool_use": True}),
        (
            {"tool": "search"},
            {"type": "function", "function": {"name": "search"}},
            {"type": "tool", "name": "search", "disable_parallel_tool_use": True},
        ),
    ],
)
def test_a_choice_of_tools(choice: Json, openai: Json, anthropic: Json) -> None:
    asked = request(settings={"tool_choice": choice, "parallel_tool_calls": False})
    assert body("openai", asked)["tool_choice"] == openai
    assert body("openai", asked)["parallel_tool_calls"] is False
    assert body("anthropic", asked)["tool_choice"] == anthropic


def test_streaming_is_asked_for_with_usage() -> None:
    assert body("openai", request(), stream=True)["stream_options"] == {"include_usage": True}
    assert body("anthropic", request(), stream=True)["stream"] is True


def test_extra_reaches_its_own_wire_form_alone() -> None:
    asked = request(settings={"extra": {"openai": {"seed": 7}}})
    assert body("openai", asked)["seed"] == 7
    assert "seed" not in body("anthropic", asked)


@pytest.mark.parametrize("name", ["model", "messages", "stream", "tools", "tool_choice"])
def test_extra_cannot_say_anew_what_the_request_says(name: str) -> None:
    asked = request(settings={"extra": {"openai": {name: "x"}, "anthropic": {name: "x"}}})
    for form in WIRE_FORMS.values():
        with pytest.raises(BadInput, match=name):
            form.encode(asked, stream=False)


def message(role: str, *parts: Json) -> Json:
    return {"role": role, "parts": list(parts)}


TEXT = {"type": "text", "text": "x"}
CALL = {"type": "tool_call", "ref": "a", "tool": "t", "arguments": "{}"}
RESULT = {"type": "tool_result", "ref": "a", "text": "x"}
ASKS = message("user", TEXT)
BAD: list[tuple[str, Json]] = [
    ("no message", []),
    ("only the system speaks", [message("system", TEXT)]),
    ("unknown role", [message("robot", TEXT)]),
    ("no parts", [message("user")]),
    ("a call by the user", [message("user", CALL)]),
    ("system in the middle", [message("user", TEXT), message("system", TEXT)]),
    ("the model speaks first", [message("assistant", TEXT), message("user", TEXT)]),
    ("a blank message", [message("user", {"type": "text", "text": " \n"})]),
    ("an open call at the end", [ASKS, message("assistant", CALL)]),
    ("an open call in between", [ASKS, message("assistant", CALL), ASKS]),
    ("a result without a call", [ASKS, message("tool", RESULT)]),
    ("two results", [ASKS, message("assistant", CALL), message("tool", RESULT, RESULT)]),
    ("one ref twice", [ASKS, message("assistant", CALL, CALL), message("tool", RESULT, RESULT)]),
    ("a part of no kind", [message("user", {"type": "video"})]),
    ("an unknown key", [message("user", {**TEXT, "more": 1})]),
    ("text that is none", [message("user", {"type": "text", "text": 5})]),
    ("a ref with a space", [ASKS, message("assistant", {**CALL, "ref": "a b"})]),
    ("arguments that are a list", [ASKS, message("assistant", {**CALL, "arguments": "[]"})]),
    ("arguments that are broken", [ASKS, message("assistant", {**CALL, "arguments": "{"})]),
    ("an opaque part of no wire", [ASKS, message("assistant", {"type": "opaque", "wire": "x", "value": {}})]),
    ("no list", "hello"),
    ("no object", ["hello"]),
]


@pytest.mark.parametrize("messages", [one for _, one in BAD], ids=[name for name, _ in BAD])
def test_a_talk_that_no_provider_would_take_is_refused_here(messages: Json) -> None:
    with pytest.raises(BadInput):
        checked_request(model="m", messages=messages)


@pytest.mark.parametrize(
    "more",
    [
        {"model": ""},
        {"settings": {"max_tokens": 0}},
        {"settings": {"max_tokens": True}},
        {"settings": {"temperature": 3}},
        {"settings": {"temperature": "hot"}},
        {"settings": {"top_k": 3}},
        {"settings": {"stop": "X"}},
        {"settings": {"tool_choice": "some"}},
        {"settings": {"tool_choice": {"tool": "a b"}}},
        {"settings": {"parallel_tool_calls": 1}},
        {"settings": {"extra": {"gemini": {}}}},
        {"settings": {"extra": {"openai": 1}}},
        {"tools": [{**TOOL, "name": "a b"}]},
        {"tools": [{**TOOL, "parameters": {"type": "string"}}]},
        {"tools": [TOOL, TOOL]},
        {"tools": [{**TOOL, "more": 1}]},
    ],
    ids=str,
)
def test_settings_and_tools_are_checked(more: Json) -> None:
    with pytest.raises(BadInput):
        request(**more)


def test_what_json_cannot_keep_is_refused() -> None:
    with pytest.raises(BadValue):
        checked_request(model="m", messages=[message("user", {"type": "text", "text": "\ud800"})])
    with pytest.raises(BadValue):
        request(settings={"temperature": float("nan")})


def test_a_request_that_is_too_large_is_refused_before_it_is_sent() -> None:
    part = {"type": "text", "text": "x" * (12 * 1024 * 1024)}
    asked = checked_request(model="m", messages=[message("user", part)] * 3)
    with pytest.raises(TooLarge):
        WIRE_FORMS["openai"].encode(asked, stream=False)


# Laws.


NAMES = st.from_regex(r"[a-zA-Z0-9_-]{1,12}", fullmatch=True)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
# Canonical JSON writes floats between 2^63 and 10^21 as whole numbers that our values refuse.
FLOATS = st.floats(-9e18, 9e18) | st.floats(1e22) | st.floats(max_value=-1e22)
LEAVES = st.one_of(st.none(), st.booleans(), TEXTS, st.integers(-(2**60), 2**60), FLOATS.filter(math.isfinite))
JSON = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3), max_leaves=8
)
OBJECTS = st.dictionaries(TEXTS, JSON, max_size=4)


@st.composite
def talks(draw: st.DrawFn) -> Request:
    messages: list[Json] = []
    if draw(st.booleans()):
        messages.append(message("system", {"type": "text", "text": draw(TEXTS) + "x"}))
    messages.append(message("user", {"type": "text", "text": draw(TEXTS) + "x"}))
    for turn in range(draw(st.integers(0, 3))):
        calls = [
            {
                "type": "tool_call",
                "ref": f"s{turn}-{i}",
                "tool": draw(NAMES),
                "arguments": values.encode(draw(OBJECTS), what="arguments").decode(),
            }
            for i in range(draw(st.integers(0, 3)))
        ]
        said = [{"type": "text", "text": draw(TEXTS)}, {"type": "refusal", "text": draw(TEXTS)}]
        kept = [one for one in said if draw(st.booleans())]
        thought = {"type": "opaque", "wire": "anthropic", "value": {"type": "thinking"}}
        messages.append(message("assistant", *(kept or [thought]), *calls))
        results = [
            {"type": "tool_result", "ref": one["ref"], "text": draw(TEXTS)} for one in draw(st.permutations(calls))
        ]
        if results:
            messages.append(message("tool", *results))
        messages.append(message("user", {"type": "text", "text": draw(TEXTS) + "x"}))
    temperature = draw(st.sampled_from([0, 1.0, 0.5, 2]))
    schema = {"type": "object", "properties": draw(OBJECTS)}
    return checked_request(
        model="m",
        messages=messages,
        settings={"temperature": temperature, "max_tokens": draw(st.integers(1, 10**6))},
        tools=[{"name": draw(NAMES), "parameters": schema}],
    )


def reordered(value: Json) -> Json:
    if isinstance(value, dict):
        return {name: reordered(value[name]) for name in reversed(list(value))}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType] - JSON
    return [reordered(one) for one in value] if isinstance(value, list) else value  # pyright: ignore[reportUnknownVariableType] - JSON


@settings(max_examples=50)
@given(talks(), st.booleans())
def test_the_same_value_is_the_same_bytes_also_after_a_record(asked: Request, stream: bool) -> None:
    """However it was built, and read back from canonical JSON (where 1.0 is 1)."""
    again: Json = values.decode(values.canonical(values.checked(asked.to_json(), what="request")))
    for other in (reordered(asked.to_json()), again):
        rebuilt = checked_request(**other)
        for form in WIRE_FORMS.values():
            assert form.encode(rebuilt, stream=stream) == form.encode(asked, stream=stream)


@settings(max_examples=50)
@given(talks())
def test_whatever_passes_the_check_is_taken_by_both_providers(asked: Request) -> None:
    """As strict as they are: the scripted server's own readers."""
    openai = read_openai(body("openai", asked))
    anthropic = read_anthropic(body("anthropic", asked), {"anthropic-version": "2023-06-01"})
    assert isinstance(openai, Asked)
    assert anthropic.turn <= openai.turn  # who said nothing is left out there
