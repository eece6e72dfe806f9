"""The providers' own Python clients against the scripted server: it speaks the real protocols.

What they parse, stream, assemble and raise is compared with what the script said.
"""

from __future__ import annotations

import json

import anthropic
import openai
import pytest
from anthropic.types import MessageParam, TextBlock, ThinkingBlock, ToolParam, ToolResultBlockParam, ToolUseBlock
from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolParam

from holdfast.testing.model_server.process import ModelServer
from holdfast.testing.model_server.script import Fault, FaultKind

KEY = "sk-canary-5f1c2a9e"
HELLO = "Hello there, dear friend: naïve café, 你好."
SCHEMA: dict[str, object] = {"type": "object", "properties": {"q": {"type": "string"}}}
OPENAI_TOOLS: list[ChatCompletionToolParam] = [
    {"type": "function", "function": {"name": "search", "parameters": SCHEMA}}
]
ANTHROPIC_TOOLS: list[ToolParam] = [{"name": "search", "input_schema": SCHEMA}]


def openai_client(server: ModelServer, key: str = KEY) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=server.url, api_key=key, max_retries=0, timeout=20)


def anthropic_client(server: ModelServer, key: str = KEY) -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(base_url=server.root, api_key=key, max_retries=0, timeout=20)


# OpenAI.


async def test_openai_plain(first: ModelServer) -> None:
    async with openai_client(first) as client:
        reply = await client.chat.completions.create(model="model-1", messages=[{"role": "user", "content": "hello"}])
    assert reply.choices[0].message.content == HELLO
    assert reply.choices[0].finish_reason == "stop"
    assert reply.usage is not None
    assert reply.usage.total_tokens == reply.usage.prompt_tokens + reply.usage.completion_tokens
    assert reply._request_id


async def test_openai_streamed(first: ModelServer) -> None:
    async with openai_client(first) as client:
        stream = await client.chat.completions.create(
            model="model-1",
            messages=[{"role": "user", "content": "hello"}],
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = [chunk async for chunk in stream]
    text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
    assert text == HELLO
    assert [one.usage is not None for one in chunks] == [False] * (len(chunks) - 1) + [True]


async def test_openai_parallel_tools_there_and_back(first: ModelServer) -> None:
    messages: list[ChatCompletionMessageParam] = [{"role": "user", "content": "a trip"}]
    async with openai_client(first) as client:
        async with client.chat.completions.stream(model="model-1", messages=messages, tools=OPENAI_TOOLS) as stream:
            streamed = await stream.get_final_completion()
        plain = await client.chat.completions.create(model="model-1", messages=messages, tools=OPENAI_TOOLS)
        for reply in (streamed, plain):
            said = reply.choices[0].message
            calls = [call for call in said.tool_calls or [] if call.type == "function"]
            assert reply.choices[0].finish_reason == "tool_calls"
            assert [(one.function.name, json.loads(one.function.arguments)) for one in calls] == [
                ("search", {"q": "LIS", "n": 2}),
                ("now", {}),
            ]
            talk: list[ChatCompletionMessageParam] = [
                *messages,
                {
                    "role": "assistant",
                    "content": said.content,
                    "tool_calls": [
                        {
                            "id": one.id,
                            "type": "function",
                            "function": {"name": one.function.name, "arguments": one.function.arguments},
                        }
                        for one in calls
                    ],
                },
            ]
            for one in calls:
                talk.append({"role": "tool", "tool_call_id": one.id, "content": "seat 4"})
            done = await client.chat.completions.create(model="model-1", messages=talk)
            assert done.choices[0].message.content == "Booked seat 4."


async def test_openai_refusal(first: ModelServer) -> None:
    async with openai_client(first) as client:
        reply = await client.chat.completions.create(model="model-1", messages=[{"role": "user", "content": "refuse"}])
    assert reply.choices[0].message.refusal == "I will not do that."
    assert reply.choices[0].message.content is None


@pytest.mark.parametrize(
    ("kind", "wanted", "code"),
    [
        (FaultKind.RATE_LIMIT, openai.RateLimitError, "rate_limit_exceeded"),
        (FaultKind.QUOTA, openai.RateLimitError, "insufficient_quota"),
        (FaultKind.SERVER_ERROR, openai.InternalServerError, None),
        (FaultKind.OVERLOADED, openai.InternalServerError, None),
        (FaultKind.BAD_KEY, openai.AuthenticationError, "invalid_api_key"),
        (FaultKind.UNKNOWN_MODEL, openai.NotFoundError, "model_not_found"),
        (FaultKind.CONTEXT_TOO_LONG, openai.BadRequestError, "context_length_exceeded"),
        (FaultKind.HANGUP, openai.APIConnectionError, None),
    ],
)
async def test_openai_errors(
    first: ModelServer, kind: FaultKind, wanted: type[openai.APIError], code: str | None
) -> None:
    await first.faults(Fault(kind=kind, retry_after_s=3))
    async with openai_client(first) as client:
        with pytest.raises(wanted) as raised:
            await client.chat.completions.create(model="model-1", messages=[{"role": "user", "content": "hello"}])
    assert raised.value.code == code
    if kind is FaultKind.RATE_LIMIT and isinstance(raised.value, openai.APIStatusError):
        assert raised.value.response.headers["retry-after"] == "3"


@pytest.mark.parametrize("kind", [FaultKind.CUT, FaultKind.STREAM_ERROR])
async def test_openai_a_stream_that_breaks(first: ModelServer, kind: FaultKind) -> None:
    await first.faults(Fault(kind=kind, after_chunks=4))
    got: list[str] = []
    async with openai_client(first) as client:
        stream = await client.chat.completions.create(
            model="model-1", messages=[{"role": "user", "content": "hello"}], stream=True
        )
        with pytest.raises(openai.APIError):  # noqa: PT012 - the stream breaks inside
            async for chunk in stream:
                got.append(chunk.choices[0].delta.content or "")
    assert HELLO.startswith("".join(got))
    assert "".join(got)


async def test_openai_is_told_of_a_talk_that_is_wrong(first: ModelServer) -> None:
    async with openai_client(first) as client:
        with pytest.raises(openai.BadRequestError, match="tool_calls"):
            await client.chat.completions.create(
                model="model-1", messages=[{"role": "tool", "tool_call_id": "x", "content": "hello"}]
            )
    async with openai_client(first, key="sk-wrong") as client:
        with pytest.raises(openai.AuthenticationError):
            await client.chat.completions.create(model="model-1", messages=[{"role": "user", "content": "hello"}])


# Anthropic.


async def test_anthropic_plain(first: ModelServer) -> None:
    async with anthropic_client(first) as client:
        reply = await client.messages.create(
            model="model-1", max_tokens=9, messages=[{"role": "user", "content": "hello"}]
        )
    assert isinstance(reply.content[0], TextBlock)
    assert reply.content[0].text == HELLO
    assert reply.stop_reason == "end_turn"
    assert reply.usage.output_tokens > 0
    assert reply._request_id


async def test_anthropic_streamed(first: ModelServer) -> None:
    async with (
        anthropic_client(first) as client,
        client.messages.stream(
            model="model-1", max_tokens=9, messages=[{"role": "user", "content": "hello"}]
        ) as stream,
    ):
        text = "".join([piece async for piece in stream.text_stream])
        reply = await stream.get_final_message()
    assert text == HELLO
    assert reply.stop_reason == "end_turn"
    assert reply.usage.output_tokens > 1


async def test_anthropic_parallel_tools_there_and_back(first: ModelServer) -> None:
    messages: list[MessageParam] = [{"role": "user", "content": "a trip"}]
    async with anthropic_client(first) as client:
        async with client.messages.stream(
            model="model-1", max_tokens=9, messages=messages, tools=ANTHROPIC_TOOLS
        ) as stream:
            streamed = await stream.get_final_message()
        plain = await client.messages.create(model="model-1", max_tokens=9, messages=messages, tools=ANTHROPIC_TOOLS)
        for reply in (streamed, plain):
            calls = [block for block in reply.content if isinstance(block, ToolUseBlock)]
            assert reply.stop_reason == "tool_use"
            assert [(one.name, one.input) for one in calls] == [("search", {"q": "LIS", "n": 2}), ("now", {})]
            results: list[ToolResultBlockParam] = [
                {"type": "tool_result", "tool_use_id": one.id, "content": "seat 4"} for one in calls
            ]
            done = await client.messages.create(
                model="model-1",
                max_tokens=9,
                messages=[
                    *messages,
                    {"role": "assistant", "content": reply.content},
                    {"role": "user", "content": results},
                ],
            )
            assert isinstance(done.content[0], TextBlock)
            assert done.content[0].text == "Booked seat 4."


async def test_anthropic_thinking_and_refusal(first: ModelServer) -> None:
    async with anthropic_client(first) as client:
        async with client.messages.stream(
            model="model-1", max_tokens=9, messages=[{"role": "user", "content": "think"}]
        ) as stream:
            thought = await stream.get_final_message()
        refused = await client.messages.create(
            model="model-1", max_tokens=9, messages=[{"role": "user", "content": "refuse"}]
        )
    assert isinstance(thought.content[0], ThinkingBlock)
    assert thought.content[0].thinking == "Let me see."
    assert thought.content[0].signature
    assert refused.stop_reason == "refusal"
    assert refused.stop_details is not None
    assert refused.stop_details.explanation == "I will not do that."


@pytest.mark.parametrize(
    ("kind", "wanted", "word"),
    [
        (FaultKind.RATE_LIMIT, anthropic.RateLimitError, "rate_limit_error"),
        (FaultKind.SERVER_ERROR, anthropic.InternalServerError, "api_error"),
        (FaultKind.OVERLOADED, anthropic.APIStatusError, "overloaded_error"),
        (FaultKind.BAD_KEY, anthropic.AuthenticationError, "authentication_error"),
        (FaultKind.UNKNOWN_MODEL, anthropic.NotFoundError, "not_found_error"),
        (FaultKind.CONTEXT_TOO_LONG, anthropic.BadRequestError, "prompt is too long"),
        (FaultKind.QUOTA, anthropic.BadRequestError, "credit balance"),
        (FaultKind.HANGUP, anthropic.APIConnectionError, ""),
    ],
)
async def test_anthropic_errors(
    first: ModelServer, kind: FaultKind, wanted: type[anthropic.APIError], word: str
) -> None:
    await first.faults(Fault(kind=kind, retry_after_s=3))
    async with anthropic_client(first) as client:
        with pytest.raises(wanted) as raised:
            await client.messages.create(model="model-1", max_tokens=9, messages=[{"role": "user", "content": "hello"}])
    assert word in str(raised.value)
    if kind is FaultKind.OVERLOADED and isinstance(raised.value, anthropic.APIStatusError):
        assert raised.value.status_code == 529


@pytest.mark.parametrize("kind", [FaultKind.CUT, FaultKind.STREAM_ERROR])
async def test_anthropic_a_stream_that_breaks(first: ModelServer, kind: FaultKind) -> None:
    await first.faults(Fault(kind=kind, after_chunks=5))
    got: list[str] = []
    async with anthropic_client(first) as client:
        with pytest.raises(Exception, match=r"(?i)overloaded|incomplete|closed|connection"):  # noqa: PT012 - the stream breaks inside
            async with client.messages.stream(
                model="model-1", max_tokens=9, messages=[{"role": "user", "content": "hello"}]
            ) as stream:
                async for piece in stream.text_stream:
                    got.append(piece)
    assert HELLO.startswith("".join(got))
    assert "".join(got)


async def test_anthropic_is_told_of_a_talk_that_is_wrong(first: ModelServer) -> None:
    async with anthropic_client(first) as client:
        with pytest.raises(anthropic.BadRequestError, match="tool_result"):
            await client.messages.create(
                model="model-1",
                max_tokens=9,
                messages=[
                    {"role": "user", "content": "hello"},
                    {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "search", "input": {}}]},
                    {"role": "user", "content": "hello"},
                ],
            )
