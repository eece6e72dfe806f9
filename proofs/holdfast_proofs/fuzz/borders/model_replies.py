"""Borders of model calls: replies, streams and errors of a provider, and requests of a task."""

from __future__ import annotations

import json

from holdfast.core import values
from holdfast.errors import BadInput
from holdfast.runtime.models.endpoint import WIRE_FORMS
from holdfast.runtime.models.reply import Reply
from holdfast.runtime.models.request import check_message, checked_request
from holdfast.runtime.models.troubles import read_error
from holdfast.runtime.models.wire import EventReader
from holdfast.testing.model_server.anthropic_speaker import AnthropicSpeaker
from holdfast.testing.model_server.asked import Asked
from holdfast.testing.model_server.openai_speaker import OpenAISpeaker
from holdfast.testing.model_server.script import Answer, FaultKind, ScriptedCall, ScriptedUsage
from holdfast_proofs.fuzz.feed import Feed, law

_FORMS = tuple(WIRE_FORMS.values())


def reply(raw: bytes) -> None:
    """The plain body of a reply."""
    feed = Feed(raw)
    form = _FORMS[feed.byte() % len(_FORMS)]
    _check(form.decode(feed.rest()))


def stream(raw: bytes) -> None:
    """A streamed reply, in pieces of any size."""
    feed = Feed(raw)
    form, size = _FORMS[feed.byte() % len(_FORMS)], feed.byte() + 1
    reader, assembler = EventReader(), form.assembler()
    shown = ""
    while feed.left:
        for event in reader.feed(feed.take(size)):
            shown += assembler.take(event)
    found = assembler.finish()
    law(shown == found.text, "what was shown is not what was said")
    _check(found)


def error(raw: bytes) -> None:
    """An answer other than 200."""
    feed = Feed(raw)
    status, wait = 300 + feed.number(2) % 300, feed.part().decode("latin-1")
    found = read_error(status, {"retry-after": wait, "retry-after-ms": wait}, feed.rest())
    law(len(found.message) < 1_000 and found.message.isprintable(), "a message nobody can read")
    wait_s = getattr(found, "retry_after_s", None)
    law(wait_s is None or 0 <= wait_s <= 86_400, "a wait without bounds")


def request(raw: bytes) -> None:
    """Messages of a task: what passes the check can be encoded, and is the same when read back."""
    try:
        told = values.decode(raw)
    except (ValueError, RecursionError):
        raise BadInput("not JSON") from None
    found = checked_request(model="m", messages=told)
    again = checked_request(model="m", messages=values.decode(values.canonical(found.messages)))
    for form in _FORMS:
        one, other = form.encode(found, stream=True), form.encode(again, stream=True)
        law(one == other, "the same value is not the same bytes")


def _check(found: Reply) -> None:
    kept = values.checked(found.to_json(), what="reply")
    raw = values.encode(kept, what="reply")
    law(Reply.from_json(values.decode(raw)) == found, "a reply is not read back as it was")
    check_message(found.message(prefix="s1"))


# Seeds: what the scripted server says.

_ASKED = Asked(model="m", stream=True, include_usage=True, turn=1, last="", weights=())
_USAGE = ScriptedUsage(input=9, output=2, cached=4)
_ANSWERS = (
    Answer(text="hello", tool_calls=(ScriptedCall(tool="t", arguments={"a": 1}),)),
    Answer(refusal="no", thinking="hm"),
)
_SPEAKERS = (OpenAISpeaker(), AnthropicSpeaker())
REPLIES = tuple(
    bytes([i]) + json.dumps(speaker.plain(answer, _ASKED, _USAGE, 1)).encode()
    for answer in _ANSWERS
    for i, speaker in enumerate(_SPEAKERS)
)
STREAMS = tuple(
    bytes([i, 40]) + b"".join(speaker.events(answer, _ASKED, _USAGE, 1, 4))
    for answer in _ANSWERS
    for i, speaker in enumerate(_SPEAKERS)
)
ERRORS = tuple(
    (status - 300).to_bytes(2, "big") + b"\x01" + b"7" + json.dumps(speaker.error(kind, 1).body).encode()
    for speaker in _SPEAKERS
    for status, kind in ((400, FaultKind.CONTEXT_TOO_LONG), (429, FaultKind.QUOTA))
)
REQUESTS = (
    json.dumps(
        [
            {"role": "user", "parts": [{"type": "text", "text": "x"}]},
            {"role": "assistant", "parts": [{"type": "tool_call", "ref": "a", "tool": "t", "arguments": '{"n": 1.0}'}]},
            {"role": "tool", "parts": [{"type": "tool_result", "ref": "a", "text": "y", "failed": False}]},
        ]
    ).encode(),
)
WORDS = (
    b"data: ",
    b"\n\n",
    b"\r",
    b"event: error\n",
    b'"tool_calls":',
    b'"index":',
    b'"delta":',
    b'"type":"tool_use"',
    b'"content":',
    b'"finish_reason":',
    b'"stop_reason":',
    b'"usage":',
    b'"error":',
    b'"code":',
    b"null",
    b"[DONE]",
    b'"partial_json":',
    b'{"',
    b"-1",
    b"1e400",
    b"\xff",
    b"\\ud800",
    b'"container":',
    b'"type":"message_start"',
    b'"opaque"',
    b'"refusal"',
)
