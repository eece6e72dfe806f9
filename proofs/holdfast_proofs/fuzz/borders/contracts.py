"""Borders of the ready contracts: webhooks, providers' answers, replies of a mail server."""

from __future__ import annotations

import hashlib
import hmac
import json

from holdfast.contracts import issues, mail_api, payments
from holdfast.contracts.mail_api import read_events
from holdfast.contracts.payments import check_signature, read_event
from holdfast.contracts.reading import answered_at, oldest
from holdfast.contracts.smtp import Line, LineBroken, stuffed
from holdfast.core import answers
from holdfast.errors import Refused
from holdfast.runtime.http.message import Response
from holdfast_proofs.fuzz.feed import Feed, as_text, law

SECRET, NOW = "whsec_1", 1_700_000_000
_READERS = (payments.read_answer, issues.read_answer, mail_api.read_answer)


def payment_event(raw: bytes) -> None:
    """The signature header in the first line, the body after it."""
    header, _, body = raw.partition(b"\n")
    check_signature(body, as_text(header), secret=SECRET, now=NOW)
    key, result = read_event(body)
    law(bool(key) or not result, "a result of nothing")


def mail_events(raw: bytes) -> None:
    for result in read_events(raw).values():
        law(result["status"] == "accepted", "an event that tells nothing")


def provider_answer(raw: bytes) -> None:
    """Whatever a provider answers is read as one of five things, and only 2xx as success."""
    feed = Feed(raw)
    reader = _READERS[feed.byte() % len(_READERS)]
    status = 200 + feed.number(2) % 400
    names = ("retry-after", "date", "x-ratelimit-reset", "x-ratelimit-remaining")
    headers = {name: feed.part().decode("latin-1") for name in names}
    response = Response(status=status, headers=headers, body=feed.rest())
    found = reader(response)
    law(isinstance(found, answers.MeansDone) == (200 <= status <= 299), "a success by mistake")
    if isinstance(found, Refused):
        wait_s = found.retry_after_s
        law(wait_s is not None and 0 <= wait_s <= answers.RETRY_AFTER_MAX_S, "a wait of no length")
    now = answered_at(response)
    bound = oldest(response, 60.0)
    law((now is None) == (bound is None), "a bound without a clock")


def smtp_reply(raw: bytes) -> None:
    """One reply of a mail server, and a mail whose lines are these bytes."""
    law(b"\r\n.\r\n" not in b"\r\n" + stuffed(raw), "a mail that ends itself")
    line = Line()
    line.data_received(raw)
    line.connection_lost(None)
    reading = line.reply()
    try:
        reading.send(None)
        law(False, "a reply that is still awaited")
    except StopIteration as done:
        code, lines = done.value
        law(200 <= code <= 599 and bool(lines), "a reply without a code")
    except LineBroken:
        pass
    finally:
        reading.close()


def _signed(body: bytes) -> bytes:
    made = hmac.digest(SECRET.encode(), f"{NOW}.".encode() + body, hashlib.sha256).hex()
    return f"t={NOW},v1={made}\n".encode() + body


_OBJECT = {"id": "pi_1", "status": "succeeded", "metadata": {"holdfast_key": "k"}}
PAYMENT_EVENTS = (
    _signed(json.dumps({"type": "payment_intent.succeeded", "data": {"object": _OBJECT}}).encode()),
    _signed(b'{"type": "other", "data": {"object": {}}}'),
)
MAIL_EVENTS = (b'[{"event": "processed", "holdfast_key": "k", "sg_message_id": "a.filter1"}]', b"[]")
ANSWERS = (
    b"\0\0\0\0",
    b'\0\0\xc8\0\0\0\0{"error": {"type": "idempotency_error"}}',
    b"\1\0\xe5\x0230\x1dTue, 14 Nov 2023 22:13:20 GMT\x0a1700000100\x010{}",
)
SMTP_REPLIES = (b"250 ok\r\n", b"250-mail.test\r\n250-SIZE 1\r\n250 AUTH PLAIN\r\n", b"354\r\n")
WORDS = (b"holdfast_key", b"metadata", b"idempotency_error", b"t=", b"v1=", b"250-", b"\r\n", b".")
