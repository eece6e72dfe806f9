"""Payments: a far end with Stripe's habits keeps the book; each effect is in it once."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import time
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest

import holdfast
from holdfast.contracts import PaymentEvents, Payments
from holdfast.contracts.payments import check_signature, find_charge, read_answer, read_event
from holdfast.core import answers
from holdfast.core.step import StepState
from holdfast.errors import BadEvent, Misuse
from holdfast.journal.records import TaskState
from holdfast.runtime.http.message import Response
from holdfast.testing.far_ends.payments import DECLINED, PaymentProvider
from holdfast.testing.far_ends.web import Answer, Trouble
from holdfast.testing.lab import Lab, wait_state

KEY = "sk_test_4eC39HqLyjWDarjtT1"
ARGS: dict[str, Any] = {"amount": 700, "currency": "eur", "payment_method": "pm_card_visa"}


@pytest.fixture
async def provider(keep: Callable[[str, str], None]) -> AsyncGenerator[PaymentProvider]:
    keep("billing", KEY)
    async with PaymentProvider(key=KEY) as made:
        yield made


def paying(provider: PaymentProvider, **changes: Any) -> holdfast.TaskType:
    payments = Payments("secret://billing", url=provider.url)

    @holdfast.task(name="pay")
    async def pay(run: holdfast.Run) -> Any:
        try:
            return await run.call(payments.charge, **{**ARGS, **changes})
        except holdfast.Refused as error:
            return ["refused", error.proof]

    return pay


async def play(lab: Lab, task: holdfast.TaskType) -> tuple[TaskState, Any]:
    async with lab.open(task) as hf:
        handle = await hf.submit(task)
        row = await wait_state(handle, TaskState.SUCCEEDED, TaskState.PARKED, TaskState.FAILED)
        view = await handle.view()
        return row.state, view.outcome["result"] if view.outcome else view.steps["1"].question


async def test_a_charge_is_made_and_its_secrets_stay_out(lab: Lab, provider: PaymentProvider) -> None:
    state, result = await play(lab, paying(provider, description="order 77"))
    assert (state, result["status"], result["amount"]) == (TaskState.SUCCEEDED, "succeeded", 700)
    assert "client_secret" not in result
    assert list(provider.taken.values()) == [1]
    ask = provider.requests[0]
    assert ask.headers["idempotency-key"] in provider.taken
    for file in lab.folder.iterdir():
        assert not file.is_file() or KEY.encode() not in file.read_bytes()


@pytest.mark.parametrize(
    "troubles",
    [
        [Trouble("lose")],
        [Trouble("reset")],
        [Trouble("lose"), Trouble("lose"), Trouble("lose")],
        [Trouble("refuse", 503), Trouble("refuse", 502)],
        [Trouble("refuse", 429, {"retry-after": "3"}), Trouble("lose")],
        [Trouble("refuse", 429)],
        [Trouble("refuse", 409, body={"error": {"type": "idempotency_error"}})],
    ],
    ids=["reply lost", "reset", "three lost", "5xx", "429 and lost", "429", "409"],
)
async def test_once_whatever_becomes_of_the_answer(
    lab: Lab, provider: PaymentProvider, troubles: list[Trouble]
) -> None:
    provider.troubles += troubles
    state, result = await play(lab, paying(provider))
    assert (state, result["status"]) == (TaskState.SUCCEEDED, "succeeded")
    assert list(provider.taken.values()) == [1]
    posts = [ask for ask in provider.requests if ask.method == "POST"]
    assert len(posts) == len(troubles) + 1
    assert len({(ask.headers["idempotency-key"], ask.body) for ask in posts}) == 1


async def test_a_decline_is_a_refusal_also_when_its_reply_was_lost(lab: Lab, provider: PaymentProvider) -> None:
    provider.troubles += [Trouble("lose")]
    state, result = await play(lab, paying(provider, payment_method=DECLINED))
    assert (state, result[0], result[1]["status"]) == (TaskState.SUCCEEDED, "refused", 402)
    assert provider.taken == {}


async def test_a_stored_500_is_looked_up_and_found(lab: Lab, provider: PaymentProvider) -> None:
    """The money is gone, and the key says 500 for ever: the list knows."""
    provider.troubles += [Trouble("after", 500)]
    state, result = await play(lab, paying(provider))
    assert (state, result["status"]) == (TaskState.SUCCEEDED, "succeeded")
    assert list(provider.taken.values()) == [1]


async def test_a_stored_500_without_an_effect_is_a_persons_matter(
    lab: Lab, provider: PaymentProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider.troubles += [Trouble("after", 500)]
    work = provider.work

    def nothing(ask: Any, trouble: Any) -> Any:
        answer = work(ask, trouble)
        provider.payments.clear()
        return answer

    monkeypatch.setattr(provider, "work", nothing)
    state, question = await play(lab, paying(provider))
    assert state is TaskState.PARKED
    assert "All attempts are used up" in question
    assert provider.taken == {}


async def test_another_body_under_the_key_is_no_refusal(lab: Lab, provider: PaymentProvider) -> None:
    """The provider says it with 400: a plain reading would record a failure, with money gone."""
    other = {"error": {"type": "idempotency_error", "message": "same request"}}
    provider.troubles += [Trouble("refuse", 400, body=other)]
    state, question = await play(lab, paying(provider))
    assert state is TaskState.PARKED
    assert "another body" in question


async def test_a_full_list_is_read_page_by_page_as_far_back_as_needed(lab: Lab, provider: PaymentProvider) -> None:
    for age_s in range(4_000, 250, -1):  # 3,750 older ones, 50 of them within the slack
        provider.payments.append(
            {"id": f"pi_old{age_s}", "created": int(time.time()) - age_s, "status": "succeeded", "metadata": {}}
        )
    provider.troubles += [Trouble("after", 500)]
    state, result = await play(lab, paying(provider))
    assert (state, result["amount"]) == (TaskState.SUCCEEDED, 700)
    lists = [ask for ask in provider.requests if ask.method == "GET"]
    assert len(lists) in (1, 2)


@pytest.mark.parametrize("body", [b"<html>", {}, {"data": None}, {"data": [1]}])
async def test_a_page_that_is_no_answer_is_no_absence(
    lab: Lab, provider: PaymentProvider, monkeypatch: pytest.MonkeyPatch, body: Any
) -> None:
    provider.troubles += [Trouble("after", 500)]
    monkeypatch.setattr(provider, "_look", lambda ask: Answer(200, body))  # pyright: ignore[reportUnknownLambdaType,reportUnknownArgumentType]
    state, question = await play(lab, paying(provider))
    assert state is TaskState.PARKED
    assert "could not find out" in question


def looking(sent_ago_s: float | None) -> holdfast.Call:
    return holdfast.Call(
        task_id="T",
        ordinal="1",
        effect_key=bytes(16),
        fence=1,
        attempt=1,
        ends=asyncio.get_running_loop().time() + 30,
        mark=lambda: None,
        effect=holdfast.Read(),
        lookup=True,
        sent_ago_s=sent_ago_s,
    )


def made(number: int, *, age_s: float, mark: str = "") -> dict[str, Any]:
    return {
        "id": f"pi_{number}",
        "created": int(time.time() - age_s),
        "status": "succeeded",
        "amount": 700,
        "currency": "eur",
        "metadata": {"holdfast_key": mark} if mark else {},
    }


@pytest.mark.parametrize(
    ("ago_s", "age_s", "others", "means", "path"),
    [
        (90_000, 90_000, 10, "Found", "/v1/payment_intents/search"),
        (90_000, None, 10, "Absent", "/v1/payment_intents/search"),
        (600, 590, 250, "Found", "/v1/payment_intents"),
        (600, None, 250, "Absent", "/v1/payment_intents"),
        (None, None, 250, "Absent", "/v1/payment_intents"),
        (None, None, 5_200, "Unsure", "/v1/payment_intents"),
        (None, 10, 250, "Found", "/v1/payment_intents"),
        # on the far end's clock it was made before we sent it: the slack covers that
        (600, 890, 950, "Found", "/v1/payment_intents"),
    ],
)
async def test_the_lookup_reads_as_far_as_it_must_and_no_further(
    provider: PaymentProvider, ago_s: float | None, age_s: float | None, others: int, means: str, path: str
) -> None:
    """Absent only where all that can be as young as the effect was seen."""
    call = looking(ago_s)
    objects = [made(number, age_s=number) for number in range(others, 0, -1)]
    if age_s is not None:
        objects.append(made(9_999, age_s=age_s, mark=call.effect_key))
        objects.sort(key=lambda one: one["created"])
    provider.payments[:] = objects
    args = {**ARGS, "key": KEY, "url": provider.url, "version": ""}
    found = await find_charge(call, **args)
    assert type(found).__name__ == means
    assert provider.requests[0].path == path
    if isinstance(found, holdfast.Found):
        assert (found.result["id"], found.args) == ("pi_9999", args)


async def test_a_killed_worker_leaves_one_charge(lab: Lab, provider: PaymentProvider, start_worker: Any) -> None:
    """SIGKILL between the charge and its record; another process goes on."""
    provider.troubles += [Trouble("hold")]
    async with start_worker("payments", url=provider.url, args=ARGS) as first:
        await provider.wait_inside()
        await first.kill()
    provider.release()
    async with start_worker("payments", url=provider.url, args=ARGS) as second:
        result = json.loads(await second.hear("result"))
    assert result[1]["status"] == "succeeded"
    assert list(provider.taken.values()) == [1]
    posts = [ask for ask in provider.requests if ask.method == "POST"]
    assert len(posts) == 2
    assert posts[0].body == posts[1].body


async def test_a_killed_worker_whose_request_is_still_under_way(
    lab: Lab, provider: PaymentProvider, start_worker: Any
) -> None:
    """The provider still works on the first request: 409, and never a second charge."""
    provider.troubles += [Trouble("wait")]
    async with start_worker("payments", url=provider.url, args=ARGS) as first:
        await provider.wait_inside()
        await first.kill()
    async with start_worker("payments", url=provider.url, args=ARGS) as second:
        while len(provider.requests) < 2:
            await lab_pause()
        provider.release()
        result = json.loads(await second.hear("result"))
    assert result[1]["status"] == "succeeded"
    assert list(provider.taken.values()) == [1]


async def test_a_refund_once_and_its_lookup(lab: Lab, provider: PaymentProvider) -> None:
    payments = Payments("secret://billing", url=provider.url)

    @holdfast.task
    async def back(run: holdfast.Run) -> Any:
        paid = await run.call(payments.charge, **ARGS)
        given = await run.call(payments.refund, payment=paid["id"], amount=200)
        seen = await run.call(payments.get, payment=paid["id"])
        return [given["amount"], given["payment_intent"] == paid["id"], seen["status"]]

    async with lab.open(back) as hf:
        handle = await hf.submit(back)
        await wait_state(handle, TaskState.SUCCEEDED, TaskState.PARKED)
        provider.troubles += [Trouble("lose"), Trouble("after", 500)]
        assert await handle.result(20) == [200, True, "succeeded"]
    assert [one["amount"] for one in provider.refunds] == [200]


async def test_a_webhook_closes_what_nobody_could_say(
    lab: Lab, provider: PaymentProvider, keep: Callable[[str, str], None]
) -> None:
    keep("hook", "whsec_1234567890")
    events = PaymentEvents("secret://hook")
    other = {"error": {"type": "idempotency_error"}}
    provider.troubles += [Trouble("refuse", 400, body=other)]
    task = paying(provider)
    async with lab.open(task) as hf:
        handle = await hf.submit(task)
        await wait_state(handle, TaskState.PARKED)
        step = (await handle.view()).steps["1"]
        ask = provider.requests[0]
        provider.work(ask, None)  # it was done in another timeline
        about = provider.payments[0]
        body, signature = provider.event("payment_intent.succeeded", about, secret="whsec_1234567890")
        with pytest.raises(BadEvent):
            await events.take(hf, body=body + b" ", signature=signature)
        assert await events.take(hf, body=body, signature=signature)
        assert (await handle.result(20))["id"] == about["id"]
        assert (await handle.view()).steps["1"].state is StepState.SUCCEEDED
        strange = {**about, "metadata": {"holdfast_key": "00000000-0000-8000-8000-000000000000"}}
        body, signature = provider.event("refund.created", strange, secret="whsec_1234567890")
        assert not await events.take(hf, body=body, signature=signature)
    assert step.state is StepState.PARKED


def answer(status: int, error: str = "", **headers: str) -> Response:
    body = {"error": {"type": error}} if error else {}
    return Response(status=status, headers=headers, body=json.dumps(body).encode())


@pytest.mark.parametrize(
    ("response", "means"),
    [
        (answer(200), answers.MeansDone()),
        (answer(400, "invalid_request_error"), answers.MeansRefused()),
        (answer(400, "idempotency_error"), answers.MeansKeyReused()),
        (answer(401), answers.MeansRefused()),
        (answer(402, "card_error"), answers.MeansRefused()),
        (answer(409, "idempotency_error"), answers.MeansBusy(retry_after_s=2.0)),
        (answer(429, "rate_limit_error"), answers.MeansBusy(retry_after_s=2.0)),
        (answer(429, **{"retry-after": "7"}), answers.MeansBusy(retry_after_s=7.0)),
        (answer(500), answers.MeansUnknown(reason="500 does not say whether it was done")),
        (answer(503), answers.MeansUnknown(reason="503 does not say whether it was done")),
        (answer(302), answers.MeansUnknown(reason="302 does not say whether it was done")),
    ],
)
def test_what_an_answer_proves(response: Response, means: answers.Meaning) -> None:
    assert read_answer(response) == means


def test_the_signature_of_an_event_is_the_published_one() -> None:
    """Worked out here again from the provider's description."""
    body, secret = b'{"type": "ping"}', "whsec_abc"
    made = hmac.digest(secret.encode(), b"1700000000." + body, hashlib.sha256).hex()
    check_signature(body, f"t=1700000000,v1={made}", secret=secret, now=1_700_000_200)
    check_signature(body, f"t=1700000000,v0=x,v1=00,v1={made}", secret=secret, now=1_700_000_000)
    for signature, now in [
        (f"t=1700000000,v1={made}", 1_700_000_301),
        (f"t=1700000001,v1={made}", 1_700_000_000),
        (f"v1={made}", 1_700_000_000),
        ("t=1700000000", 1_700_000_000),
        ("", 0),
        (f"t=1700000000,v1={made[:-1]}é", 1_700_000_000),
    ]:
        with pytest.raises(BadEvent):
            check_signature(body, signature, secret=secret, now=now)


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"type": "x"}', b"\xff", b'{"data": 1}'])
def test_an_event_that_cannot_be_read_is_refused(body: bytes) -> None:
    with pytest.raises(BadEvent):
        read_event(body)


def test_what_is_wrong_is_said_before_anything_is_sent() -> None:
    with pytest.raises(Misuse, match="secret://"):
        Payments("sk_live_value")
    with pytest.raises(Misuse, match="https://"):
        Payments("secret://billing", url="api.stripe.com")


async def lab_pause() -> None:
    await asyncio.sleep(0.005)
