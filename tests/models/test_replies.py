"""Replies out of bytes: plain and streamed say the same, and nothing is taken by halves."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.errors import ModelOverloaded, ModelRateLimited, ModelRejected, ModelUnavailable, ReplyGarbled
from holdfast.runtime.models import wire as wire_module
from holdfast.runtime.models.endpoint import WIRE_FORMS
from holdfast.runtime.models.reply import Opaque, Reply, StopReason, ToolCall, Usage
from holdfast.runtime.models.request import ARGUMENTS_BYTES_MAX, check_message, checked_request, parse_arguments
from holdfast.runtime.models.wire import EventReader
from holdfast.testing.model_server.anthropic_speaker import AnthropicSpeaker
from holdfast.testing.model_server.asked import Asked
from holdfast.testing.model_server.openai_speaker import OpenAISpeaker
from holdfast.testing.model_server.script import Answer, ScriptedCall, ScriptedUsage

Json = Any  # what a test makes up
SPEAKERS = {"openai": OpenAISpeaker(), "anthropic": AnthropicSpeaker()}
ASKED = Asked(model="m", stream=True, include_usage=True, turn=1, last="", weights=())
USAGE = ScriptedUsage(input=100, output=7, cached=60)


def plain(wire: str, answer: Answer) -> Reply:
    body = SPEAKERS[wire].plain(answer, ASKED, USAGE, 1)
    return WIRE_FORMS[wire].decode(json.dumps(body).encode())


def raw_stream(wire: str, answer: Answer, *, chunk_chars: int = 3) -> bytes:
    return b"".join(SPEAKERS[wire].events(answer, ASKED, USAGE, 1, chunk_chars))


def assembled(wire: str, pieces: Sequence[bytes]) -> tuple[Reply, str]:
    reader, assembler = EventReader(), WIRE_FORMS[wire].assembler()
    shown = [assembler.take(event) for piece in pieces for event in reader.feed(piece)]
    return assembler.finish(), "".join(shown)


def meaning(reply: Reply) -> Json:
    """All of a reply but how its arguments were spaced."""
    return msgspec.structs.replace(
        reply,
        parts=tuple(
            msgspec.structs.replace(part, text="") if isinstance(part, ToolCall) else part for part in reply.parts
        ),
    )


TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
OBJECTS = st.dictionaries(TEXTS, TEXTS | st.integers(-(2**53), 2**53) | st.booleans(), max_size=3)
CALLS = st.builds(
    ScriptedCall,
    tool=st.from_regex(r"[a-z_]{1,9}", fullmatch=True),
    arguments=OBJECTS,
    id=st.sampled_from([None, "same"]),
)
ANSWERS = st.builds(
    Answer, text=TEXTS, tool_calls=st.lists(CALLS, max_size=3).map(tuple), refusal=st.just("") | TEXTS
).filter(lambda one: bool(one.text.strip() or one.tool_calls or one.refusal.strip()))  # else it is empty


@settings(max_examples=60)
@given(ANSWERS, st.sampled_from(["openai", "anthropic"]), st.data())
def test_a_stream_cut_anyhow_says_what_the_plain_reply_says(answer: Answer, wire: str, data: st.DataObject) -> None:
    raw = raw_stream(wire, answer, chunk_chars=data.draw(st.integers(1, 10)))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=8)))
    pieces = [raw[a:b] for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
    reply, shown = assembled(wire, pieces)
    assert meaning(reply) == meaning(plain(wire, answer))
    assert shown == reply.text == answer.text
    assert [call.arguments for call in reply.tool_calls] == [call.arguments for call in answer.tool_calls]
    assert [call.number for call in reply.tool_calls] == [*range(1, len(answer.tool_calls) + 1)]
    assert Reply.from_json(json.loads(json.dumps(reply.to_json()))) == reply
    check_message(reply.message(prefix="s1"))


@settings(max_examples=60)
@given(ANSWERS, st.sampled_from(["openai", "anthropic"]), st.data())
def test_a_stream_that_ends_early_is_never_a_reply(answer: Answer, wire: str, data: st.DataObject) -> None:
    """Any prefix that lacks the last event, or (for a wire whose last event says nothing) two."""
    events = list(SPEAKERS[wire].events(answer, ASKED, USAGE, 1, 3))
    needed = len(events) - (3 if wire == "openai" else 1)
    kept = data.draw(st.integers(0, needed))
    with pytest.raises(ReplyGarbled) as raised:
        assembled(wire, events[:kept])
    assert raised.value.reason == "cut"


@settings(max_examples=150)
@given(st.sampled_from(["openai", "anthropic"]), st.binary(max_size=40), st.data())
def test_damaged_bytes_give_a_reply_or_an_error_of_ours(wire: str, noise: bytes, data: st.DataObject) -> None:
    answer = Answer(text="some text", tool_calls=(ScriptedCall(tool="t", arguments={"a": 1}),))
    raw = bytearray(raw_stream(wire, answer))
    place = data.draw(st.integers(0, len(raw)))
    raw[place : place + len(noise)] = noise
    body = bytearray(json.dumps(SPEAKERS[wire].plain(answer, ASKED, USAGE, 1)).encode())
    where = data.draw(st.integers(0, len(body)))
    body[where : where + len(noise)] = noise
    for read in (lambda: assembled(wire, [bytes(raw)])[0], lambda: WIRE_FORMS[wire].decode(bytes(body))):
        with contextlib.suppress(ModelUnavailable, ModelRejected, ReplyGarbled):
            assert isinstance(read(), Reply)


LEAVES = st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=3)
WORDS = st.sampled_from(
    [
        "choices",
        "message",
        "delta",
        "content",
        "tool_calls",
        "function",
        "type",
        "index",
        "usage",
        "text",
        "error",
        "message_start",
        "content_block_start",
        "content_block",
        "stop_reason",
        "id",
        "prompt_tokens",
        "input_tokens",
        "name",
        "arguments",
        "input",
        "finish_reason",
        "container",
    ]
)
SHAPES = st.recursive(
    LEAVES | WORDS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=5), max_leaves=15
)


@settings(max_examples=150)
@given(st.sampled_from(["openai", "anthropic"]), SHAPES)
def test_any_json_gives_a_reply_or_an_error_of_ours(wire: str, shape: Json) -> None:
    raw = json.dumps(shape).encode()
    for read in (lambda: WIRE_FORMS[wire].decode(raw), lambda: assembled(wire, [b"data: " + raw + b"\n\n"])[0]):
        with contextlib.suppress(ModelUnavailable, ModelRejected, ReplyGarbled):
            assert isinstance(read(), Reply)


def test_tokens_are_counted_alike() -> None:
    """One provider counts cached tokens as input, the other beside it."""
    for wire in SPEAKERS:
        usage = plain(wire, Answer(text="x")).usage
        assert isinstance(usage, Usage)
        assert (usage.input_tokens, usage.output_tokens) == (100, 7)
        assert (usage.cached_tokens, usage.cold_tokens) == (60, 40)


def test_who_does_not_tell_of_a_cache_is_not_taken_to_have_none() -> None:
    reply = WIRE_FORMS["openai"].decode(
        b'{"choices":[{"message":{"content":"x"},"finish_reason":"stop"}],'
        b'"usage":{"prompt_tokens":3,"completion_tokens":1}}'
    )
    assert reply.usage is not None
    assert reply.usage == Usage(input_tokens=3, output_tokens=1)
    assert reply.usage.cold_tokens is None


@pytest.mark.parametrize(
    ("wire", "word", "stop"),
    [
        ("openai", "stop", StopReason.END),
        ("openai", "length", StopReason.LENGTH),
        ("openai", "content_filter", StopReason.REFUSED),
        ("openai", "brand_new", StopReason.OTHER),
        ("anthropic", "end_turn", StopReason.END),
        ("anthropic", "max_tokens", StopReason.LENGTH),
        ("anthropic", "model_context_window_exceeded", StopReason.LENGTH),
        ("anthropic", "stop_sequence", StopReason.STOP_TEXT),
        ("anthropic", "pause_turn", StopReason.PAUSED),
        ("anthropic", "refusal", StopReason.REFUSED),
    ],
)
def test_stop_reasons(wire: str, word: str, stop: StopReason) -> None:
    for reply in (
        plain(wire, Answer(text="x", stop=word)),
        assembled(wire, [raw_stream(wire, Answer(text="x", stop=word))])[0],
    ):
        assert reply.stop is stop
        assert reply.ids["stop"] == word


@pytest.mark.parametrize("wire", ["openai", "anthropic"])
def test_an_empty_reply_is_none_unless_it_is_meant(wire: str) -> None:
    for nothing in ("", " ", "\n\t \u2003"):
        with pytest.raises(ReplyGarbled) as raised:
            plain(wire, Answer(text=nothing))
        assert raised.value.reason == "empty"
    word = "length" if wire == "openai" else "max_tokens"
    assert plain(wire, Answer(stop=word)).stop is StopReason.LENGTH


@pytest.mark.parametrize("wire", ["openai", "anthropic"])
def test_a_refusal_is_a_reply(wire: str) -> None:
    reply, shown = assembled(wire, [raw_stream(wire, Answer(refusal="No."))])
    assert (reply.stop, reply.refusal, reply.text, shown) == (StopReason.REFUSED, "No.", "", "")
    assert plain(wire, Answer(text="x")).refusal is None
    sent_back = checked_request(
        model="m",
        messages=[
            {"role": "user", "parts": [{"type": "text", "text": "x"}]},
            reply.message(prefix="s1"),
            {"role": "user", "parts": [{"type": "text", "text": "y"}]},
        ],
    )
    for form in WIRE_FORMS.values():
        assert b"No." in form.encode(sent_back, stream=False)


def test_thinking_goes_back_as_it_came_and_to_its_own_wire_alone() -> None:
    reply, _ = assembled("anthropic", [raw_stream("anthropic", Answer(thinking="hm", text="x"))])
    value: Json = {"type": "thinking", "thinking": "hm", "signature": "c2lnbmVk"}
    assert reply.parts[0] == Opaque(wire="anthropic", value=value)
    asked = checked_request(
        model="m", messages=[{"role": "user", "parts": [{"type": "text", "text": "x"}]}, reply.message(prefix="s1")]
    )
    sent = json.loads(WIRE_FORMS["anthropic"].encode(asked, stream=False))
    assert sent["messages"][1]["content"][0] == value
    assert b"thinking" not in WIRE_FORMS["openai"].encode(asked, stream=False)


# Tool calls that are not right.


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"cents": 1, "cents": 2}', "twice"),
        ('{"cents": ', "not JSON"),
        ("[1]", "not a JSON object"),
        ('{"cents": NaN}', "NaN"),
        ('{"cents": 1e999}', "not a JSON number"),
        ('{"cents": ' + "9" * 30 + "}", "64 bits"),
        ('{"a": "\\ud800"}', "surrogate"),
        ("[" * 100_000, "not JSON"),
        ('{"a":' * 300 + "1" + "}" * 300, "nested"),
    ],
    ids=lambda one: one[:20],
)
def test_arguments_that_cannot_be_meant_carry_an_error(text: str, why: str) -> None:
    read = parse_arguments(text)
    assert read.value is None
    assert why in read.error


def test_arguments_of_ten_megabytes_are_a_clear_error_and_are_not_kept() -> None:
    for wire in SPEAKERS:
        text = '{"a": "' + "x" * (10 * 1024 * 1024) + '"}'
        answer = Answer(tool_calls=(ScriptedCall(tool="t", arguments=text),))
        reply, _ = assembled(wire, [raw_stream(wire, answer, chunk_chars=1 << 20)])
        call = reply.tool_calls[0]
        assert call.arguments is None
        assert f"{ARGUMENTS_BYTES_MAX:,}" in call.error
        assert len(call.text) <= 2_000


def test_a_malformed_call_goes_back_in_a_form_that_every_provider_takes() -> None:
    calls = (
        ScriptedCall(tool="odd name!", arguments='{"cents": ', id="same"),
        ScriptedCall(tool="", arguments="{}", id="same"),
    )
    reply, _ = assembled("openai", [raw_stream("openai", Answer(tool_calls=calls))])
    assert [call.error != "" for call in reply.tool_calls] == [True, True]
    assert [call.provider_id for call in reply.tool_calls] == ["same", "same"]
    sent = check_message(reply.message(prefix="s9"))
    assert sent == {
        "role": "assistant",
        "parts": [
            {
                "type": "tool_call",
                "ref": "s9-1",
                "tool": "odd_name_",
                "arguments": '{"malformed_arguments":"{\\"cents\\": "}',
            },
            {"type": "tool_call", "ref": "s9-2", "tool": "unnamed", "arguments": '{"malformed_arguments":"{}"}'},
        ],
    }


def test_more_calls_than_the_limit_are_no_reply() -> None:
    answer = Answer(tool_calls=(ScriptedCall(tool="t"),) * 129)
    for wire in SPEAKERS:
        for read in (
            lambda wire=wire: plain(wire, answer),
            lambda wire=wire: assembled(wire, [raw_stream(wire, answer)]),
        ):
            with pytest.raises(ReplyGarbled) as raised:
                read()
            assert raised.value.reason == "too-large"


def chunk(*calls: Json, finish: str | None = None) -> bytes:
    body = {"choices": [{"index": 0, "delta": {"tool_calls": calls}, "finish_reason": finish}]}
    return b"data: " + json.dumps(body).encode() + b"\n\n"


def test_two_calls_under_one_index_with_two_ids_are_two() -> None:
    """As some compatible servers send them; a name that is repeated is not doubled."""
    pieces = [
        chunk({"index": 0, "id": "a", "function": {"name": "t", "arguments": '{"n":1}'}}),
        chunk({"index": 0, "id": "b", "function": {"name": "t", "arguments": '{"n":'}}),
        chunk({"index": 0, "id": "b", "function": {"name": "t", "arguments": "2}"}}),
        chunk({"id": "c", "function": {"name": "u"}}, finish="tool_calls"),
    ]
    reply, _ = assembled("openai", pieces)
    assert [(one.tool, one.arguments) for one in reply.tool_calls] == [("t", {"n": 1}), ("t", {"n": 2}), ("u", {})]


def test_an_error_inside_a_stream_or_a_200_is_that_error() -> None:
    begun = list(AnthropicSpeaker().events(Answer(text="x"), ASKED, USAGE, 1, 3))[:3]
    with pytest.raises(ModelOverloaded):
        assembled("anthropic", [*begun, AnthropicSpeaker().error_event()])
    with pytest.raises(ModelRateLimited):
        WIRE_FORMS["openai"].decode(b'{"error": {"code": 429, "message": "slow down"}}')
    with pytest.raises(ReplyGarbled):
        WIRE_FORMS["openai"].decode(b'{"error": {"message": "?"}}')


def test_only_text_is_shown_as_text() -> None:
    events = list(AnthropicSpeaker().events(Answer(text="x"), ASKED, USAGE, 1, 3))
    odd = [one.replace(b'"type": "text"', b'"type": "odd"') for one in events]
    more = [one.replace(b'"index": 0', b'"index": 1') for one in events[2:5]]
    reply, shown = assembled("anthropic", [*odd[:5], *more, *events[5:]])
    assert shown == reply.text == "x"


@pytest.mark.parametrize("kind", ["content_block_delta", "content_block_stop"])
def test_events_for_a_block_that_is_not_open_are_garbage(kind: str) -> None:
    body = {"type": kind, "index": 0, "delta": {"type": "text_delta", "text": "x"}}
    with pytest.raises(ReplyGarbled):
        assembled("anthropic", [b"data: " + json.dumps(body).encode() + b"\n\n"])


def test_kinds_that_we_do_not_know_do_no_harm() -> None:
    events = list(AnthropicSpeaker().events(Answer(text="x"), ASKED, USAGE, 1, 3))
    odd = b'event: news\ndata: {"type": "news"}\n\n'
    reply, _ = assembled("anthropic", [events[0], odd, *events[1:]])
    assert reply.text == "x"
    search: Json = {"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"q": "x"}}
    body = AnthropicSpeaker().plain(Answer(text="x"), ASKED, USAGE, 1)
    body["content"].insert(0, search)
    kept = WIRE_FORMS["anthropic"].decode(json.dumps(body).encode())
    assert kept.parts[0] == Opaque(wire="anthropic", value=search)


# Server-sent events.


@given(
    st.lists(st.sampled_from([b"data: a", b"data:b", b"event: e", b": note", b"id: 1", b""])),
    st.sampled_from([b"\n", b"\r\n", b"\r"]),
    st.data(),
)
def test_however_events_are_cut_they_are_the_same(lines: list[bytes], ending: bytes, data: st.DataObject) -> None:
    raw = b"".join(line + ending for line in lines) + b"data: last" + ending * 2 + b"\n"
    cuts = sorted(data.draw(st.lists(st.integers(0, len(raw)), max_size=6)))
    reader, whole = EventReader(), EventReader()
    pieces = [raw[a:b] for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
    found = [event for piece in pieces for event in reader.feed(piece)]
    assert found == list(whole.feed(raw))
    assert found[-1].data.endswith("last")


def test_an_event_that_nothing_ends_never_was() -> None:
    assert list(EventReader().feed(b"\xef\xbb\xbfdata: a\n\ndata: b\n")) == [wire_module.ServerEvent(name="", data="a")]


@pytest.mark.parametrize("line", [b"xdata: a", b"\xff\xfe", b"<html>", b"{}"])
def test_a_line_that_is_no_event_is_garbage(line: bytes) -> None:
    with pytest.raises(ReplyGarbled):
        list(EventReader().feed(line + b"\n\n"))


def test_streams_have_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire_module, "EVENTS_MAX", 3)
    monkeypatch.setattr(wire_module, "EVENT_BYTES_MAX", 100)
    for raw in (b"data: a\n\n" * 4, b"data: " + b"a" * 200, b"data: aaaaaaaaaa\n" * 20):
        with pytest.raises(ReplyGarbled) as raised:
            list(EventReader().feed(raw))
        assert raised.value.reason == "too-large"
