"""Mail by an HTTP API: no key at the provider; its search and its events say what it did."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest

import holdfast
from holdfast.contracts import MailApi, MailEvents
from holdfast.contracts.mail_api import message_id, read_answer, read_events
from holdfast.core import answers
from holdfast.errors import BadEvent, Misuse
from holdfast.journal.records import TaskState
from holdfast.runtime.http.message import Response
from holdfast.testing.far_ends.mail_api import MailProvider
from holdfast.testing.far_ends.web import Answer, Trouble
from holdfast.testing.lab import Lab, wait_state

KEY = "SG.ngeVfQFYQlKU0ufo8x5d1A.TwL2iGABf9DHoTf"
MAIL: dict[str, Any] = {"to": ["ada@example.org", "bob@example.org"], "subject": "Trip", "text": "Gate 7"}
DONE = (TaskState.SUCCEEDED, TaskState.PARKED, TaskState.FAILED)


@pytest.fixture
async def provider(keep: Callable[[str, str], None]) -> AsyncGenerator[MailProvider]:
    keep("mail", KEY)
    async with MailProvider(key=KEY, index_lag_s=0.2) as made:
        yield made


def mailing(provider: MailProvider, **options: Any) -> holdfast.TaskType:
    words: dict[str, Any] = {"sender": "bot@example.org", "url": provider.url, "index_lag_s": 20, **options}
    mail = MailApi("secret://mail", **words)

    @holdfast.task(name="mail")
    async def one(run: holdfast.Run) -> Any:
        try:
            return await run.call(mail.send, **MAIL)
        except holdfast.Refused as error:
            return ["refused", error.proof["status"]]

    return one


async def play(lab: Lab, task: holdfast.TaskType) -> tuple[TaskState, Any]:
    async with lab.open(task) as hf:
        handle = await hf.submit(task)
        row = await wait_state(handle, *DONE)
        view = await handle.view()
        return row.state, view.outcome["result"] if view.outcome else view.steps["1"].question


@pytest.mark.parametrize(
    ("troubles", "posts"),
    [
        ([], 1),
        ([Trouble("lose")], 1),
        ([Trouble("after", 503)], 1),
        ([Trouble("reset")], 2),
        ([Trouble("refuse", 429, {"retry-after": "2"}), Trouble("lose")], 2),
        ([Trouble("refuse", 500), Trouble("after", 500)], 2),
    ],
    ids=["plain", "reply lost", "503 done", "reset", "429 and lost", "500 and 500 done"],
)
async def test_one_mail_whatever_becomes_of_the_answer(
    lab: Lab, provider: MailProvider, troubles: list[Trouble], posts: int
) -> None:
    provider.troubles += troubles
    state, result = await play(lab, mailing(provider))
    assert (state, result["status"]) == (TaskState.SUCCEEDED, "accepted")
    assert [mail["id"] for mail in provider.mails] == [result["message_id"]]
    assert len([ask for ask in provider.requests if ask.method == "POST"]) == posts
    assert provider.mails[0]["from"] == {"email": "bot@example.org"}
    assert KEY.encode() not in lab.journal.read_bytes()


async def test_a_refusal_is_told(lab: Lab, provider: MailProvider) -> None:
    provider.troubles += [Trouble("refuse", 403)]
    assert await play(lab, mailing(provider)) == (TaskState.SUCCEEDED, ["refused", 403])


async def test_two_mails_are_a_persons_matter(lab: Lab, provider: MailProvider) -> None:
    """If something ever went wrong, it is seen and not made worse."""
    provider.troubles += [Trouble("lose")]
    work = provider.work

    def twice(ask: Any, trouble: Any) -> Any:
        work(ask, trouble)
        return work(ask, trouble)

    provider.work = twice
    state, question = await play(lab, mailing(provider))
    assert (state, len(provider.mails)) == (TaskState.PARKED, 2)
    assert "more than once" in question


async def test_a_page_that_is_no_answer_is_no_absence(
    lab: Lab, provider: MailProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proxy answers the search with 200 and a page of its own: the mail must not go again."""
    provider.troubles += [Trouble("lose")]
    for body in (b"<html>maintenance</html>", {"messages": ["x"]}):
        monkeypatch.setattr(provider, "_search", lambda query, body=body: Answer(200, body))  # pyright: ignore[reportUnknownLambdaType,reportUnknownArgumentType]
        provider.mails.clear()
        provider.troubles[:] = [Trouble("lose")]
        state, question = await play(lab, mailing(provider))
        assert (state, len(provider.mails)) == (TaskState.PARKED, 1)
        assert "could not find out" in question


async def test_an_event_closes_the_doubt_long_before_the_search(lab: Lab, provider: MailProvider) -> None:
    provider.troubles += [Trouble("lose")]
    task = mailing(provider, index_lag_s=86_400)
    async with lab.open(task) as hf:
        handle = await hf.submit(task)
        await wait_state(handle, TaskState.SLEEPING, TaskState.RUNNING)
        while not provider.mails:
            await hf.journal.wait_change(timeout_s=0.02)
        body, signature, at = provider.events("processed", "open")
        told = await MailEvents(provider.public_key).take(hf, body=body, signature=signature, timestamp=at)
        assert told == 1
        assert (await handle.result(20))["message_id"] == provider.mails[0]["id"]
    assert (len(provider.mails), len(provider.requests)) == (1, 1)


async def test_without_a_search_a_doubt_is_parked_until_an_event_comes(lab: Lab, provider: MailProvider) -> None:
    provider.troubles += [Trouble("lose")]
    task = mailing(provider, lookup=False)
    async with lab.open(task) as hf:
        handle = await hf.submit(task)
        await wait_state(handle, TaskState.PARKED)
        body, signature, at = provider.events("bounce")
        events = MailEvents(provider.public_key)
        with pytest.raises(BadEvent):
            await events.take(hf, body=body, signature=signature, timestamp=str(int(at) + 1))
        assert await events.take(hf, body=body, signature=signature, timestamp=at) == 1
        assert (await handle.result(20))["status"] == "accepted"
    assert len(provider.requests) == 1


async def test_a_killed_worker_leaves_one_mail(lab: Lab, provider: MailProvider, start_worker: Any) -> None:
    provider.troubles += [Trouble("hold")]
    words = {"url": provider.url, "sender": "bot@example.org", "index_lag_s": 20, "args": MAIL}
    async with start_worker("mail_api", **words) as first:
        await provider.wait_inside()
        await first.kill()
    provider.release()
    async with start_worker("mail_api", **words) as second:
        result = json.loads(await second.hear("result"))
    assert [mail["id"] for mail in provider.mails] == [result[1]["message_id"]]


def answer(status: int, **headers: str) -> Response:
    return Response(status=status, headers={n.replace("_", "-"): v for n, v in headers.items()}, body=b"{}")


def test_what_an_answer_proves() -> None:
    assert read_answer(answer(202)) == answers.MeansDone()
    for status in (400, 401, 403, 404, 413, 415):
        assert read_answer(answer(status)) == answers.MeansRefused()
    for status in (302, 408, 500, 502, 503):
        assert isinstance(read_answer(answer(status)), answers.MeansUnknown)
    limited = read_answer(answer(429, x_ratelimit_reset="1700000030", date="Tue, 14 Nov 2023 22:13:20 GMT"))
    assert isinstance(limited, holdfast.Refused)
    assert limited.retry_after_s == 30


# A vector of the provider's own: the key, signature, time and body that its libraries are tested
# with. The body ends in a line end, which is signed too.
PUBLIC_KEY = (
    "MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAE83T4O/n84iotIvIW4mdBgQ/7dAfSmpqIM8kF9mN1flpVKS3GRqe6"
    "2gw+2fNNRaINXvVpiglSI8eNEc6wEA3F+g=="
)
SIGNATURE = "MEUCIGHQVtGj+Y3LkG9fLcxf3qfI10QysgDWmMOVmxG0u6ZUAiEAyBiXDWzM+uOe5W0JuG+luQAbPIqHh89M15TluLtEZtM="
BODY = (
    b'[{"email":"hello@world.com","event":"dropped","reason":"Bounced Address",'
    b'"sg_event_id":"ZHJvcC0xMDk5NDkxOS1MUnpYbF9OSFN0T0doUTRrb2ZTbV9BLTA",'
    b'"sg_message_id":"LRzXl_NHStOGhQ4kofSm_A.filterdrecv-p3mdw1-756b745b58-kmzbl-18-5F5FC76C-9.0",'
    b'"smtp-id":"<LRzXl_NHStOGhQ4kofSm_A@ismtpd0039p1iad1.sendgrid.net>","timestamp":1600112492}]'
    b"\r\n"
)


def test_the_signature_of_an_event_is_the_published_one() -> None:
    events = MailEvents(PUBLIC_KEY)
    events.check(BODY, signature=SIGNATURE, timestamp="1600112502")
    for body, signature, at in [
        (BODY[:-2], SIGNATURE, "1600112502"),
        (BODY, SIGNATURE, "1600112503"),
        (BODY, SIGNATURE[:-4] + "AAA=", "1600112502"),
        (BODY, "", ""),
        (BODY, "ü", "1600112502"),
    ]:
        with pytest.raises(BadEvent):
            events.check(body, signature=signature, timestamp=at)
    assert read_events(BODY) == {}  # none of ours


@pytest.mark.parametrize(
    "text", ["F4I9-T0l.recvd-5c5b57d4f4-5q9zv-1-678AC6E5-2.0", "F4I9-T0l.filter0001.16648.5515E0B88.0", "F4I9-T0l"]
)
def test_the_id_of_the_request_in_the_id_of_a_message(text: str) -> None:
    assert message_id(text) == "F4I9-T0l"


@pytest.mark.parametrize("body", [b"", b"{}", b"\xff", b"1", b"[[[["])
def test_a_batch_that_cannot_be_read_is_refused(body: bytes) -> None:
    with pytest.raises(BadEvent):
        read_events(body)


def test_what_is_wrong_is_said_at_once() -> None:
    with pytest.raises(Misuse):
        MailApi("SG.value", sender="a@example.org")
    for bad in ("ada", "@b", "Ada <a@b>", "a@b, c@d", "a@b\r\nBcc: x@y"):
        with pytest.raises(Misuse):
            MailApi("secret://mail", sender=bad)
    for bad in ("", "AAAA", "MCowBQYDK2VwAyEA11qYAYKxCrfVS/7TyWQHOg7hcvPapiMlrwIaaPcHURo="):
        with pytest.raises(Misuse):
            MailEvents(bad)
