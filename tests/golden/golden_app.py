"""The app of the golden journal: a task for each state and kind of record. Do not change it.

The tasks in the golden files were begun with this code; later versions of Holdfast resume them
with it. Far ends are found by environment variables, read when they are needed.
"""

from __future__ import annotations

import hashlib
import os
from typing import Any

import holdfast

Json = dict[str, Any]  # Any: JSON values of a far end

KEYED = holdfast.Keyed(window_s=400 * 86_400, fingerprint="checked", refusals_stored=False, max_delay_s=0.1)
_seen: set[str] = set()


def _url(name: str) -> str:
    return os.environ.get(f"GOLDEN_{name}_URL", "http://127.0.0.1:9/v1")


def _first(call: holdfast.Call) -> bool:
    """Whether this process sees the effect for the first time."""
    new = call.effect_key not in _seen
    _seen.add(call.effect_key)
    return new


# tools, one for each effect class


@holdfast.tool(effect=holdfast.Read())
async def look(query: str) -> Json:
    """Look something up."""
    return {"query": query, "hits": 3}


@holdfast.tool(effect=holdfast.Read())
async def write_part(call: holdfast.Call, name: str, text: str) -> int:
    """Write a working file."""
    return (call.scratch / name).write_text(text)


@holdfast.tool(effect=KEYED, secrets={"token": "billing"}, http_only=True)
async def charge(call: holdfast.Call, token: str, cents: int) -> Json:
    """Charge a card."""
    card = hashlib.sha256(token.encode()).hexdigest()
    body = {"card": card, "cents": cents, "currency": "EUR"}
    return (await call.http.post(f"{_url('PAYMENT')}/charges", json=body)).json()


@holdfast.tool(effect=KEYED, http_only=True)
async def pay(call: holdfast.Call, cents: int) -> Json:
    """Pay for what was found."""
    body = {"card": "tok_1", "cents": cents, "currency": "EUR"}
    return (await call.http.post(f"{_url('PAYMENT')}/charges", json=body)).json()


@holdfast.tool(effect=holdfast.Queryable(max_delay_s=0.1), http_only=True)
async def send_mail(call: holdfast.Call, to: str) -> Json:
    """Mail somebody."""
    body = {"to": to, "subject": "golden", "body": "a line"}
    return (await call.http.post(f"{_url('MAIL')}/mails", json=body)).json()


@send_mail.find
async def find_mail(call: holdfast.Call, to: str) -> holdfast.Found | holdfast.Absent | holdfast.Many:
    step = {"task": call.task_id, "step": call.ordinal}
    mails = (await call.http.get(f"{_url('MAIL')}/mails", params=step)).json()["mails"]
    if len(mails) > 1:
        return holdfast.Many(mails)
    return holdfast.Found(mails[0], args={"to": to}) if mails else holdfast.Absent()


@holdfast.tool(effect=holdfast.Unrepeatable(max_delay_s=0.1), http_only=True)
async def post_letter(call: holdfast.Call, to: str) -> Json:
    """Have a paper letter posted."""
    answer = await call.http.post(f"{_url('LETTER')}/effects", json={"to": to})
    return {"letter": answer.json()["id"]}


@holdfast.tool(effect=holdfast.Transactional())
async def book(call: holdfast.Call, cents: int) -> holdfast.Apply:
    """Enter a sum into a table of our own."""
    return holdfast.Apply(
        [
            ("CREATE TABLE IF NOT EXISTS golden_book (key TEXT PRIMARY KEY, cents INTEGER)", ()),
            ("INSERT INTO golden_book VALUES (?, ?)", (call.effect_key, cents)),
        ],
        result={"booked": cents},
    )


@holdfast.tool(effect=holdfast.Fenced())
async def lock_door(call: holdfast.Call) -> bool:
    return call.fence > 0


@holdfast.tool(effect=holdfast.Idempotent())
async def paint(call: holdfast.Call, colour: str) -> str:
    if _first(call):
        raise holdfast.NotSent("the first brush was dry")
    return colour


@holdfast.tool(effect=KEYED, retries=1, retry_delay_s=0.01)
async def decline(call: holdfast.Call) -> None:
    raise holdfast.Refused("they do not sell to us")


@holdfast.tool(effect=holdfast.Read())
async def raises() -> None:
    raise ValueError("no such flight")


# tasks


@holdfast.task
async def trip(run: holdfast.Run, who: str) -> Json:
    """All that goes well: every effect class, notes, working files, memory, a retried doubt."""
    folder = run.scratch.path
    run.plan.add("look", "pay")
    found = await run.call(look, query=who)
    both = await run.gather(
        run.call(write_part, name="a.txt", text="part a\n"), run.call(write_part, name="b.txt", text="part b\n")
    )
    (folder / "log.txt").write_text(f"{both}\n")
    began, number, name = run.now().isoformat(), run.random(), run.uuid()
    receipt = await run.call(charge, token="secret://billing", cents=1_840)
    run.plan.set(2, "done", result=receipt["id"])
    await run.sleep(0.01)
    mail = run.call(send_mail, to="ada@example.org")
    await mail
    await run.compensate(mail, send_mail, to="undo@example.org")
    painted = await run.call(paint, colour="blue")
    locked = await run.call(lock_door)
    booked = await run.call(book, cents=1_840)
    await run.note(f"{who} has a trip", to="MEMORY")
    await run.note("paid 18.40")
    return {
        "hits": found["hits"],
        "parts": both,
        "receipt": receipt["id"],
        "painted": painted,
        "locked": locked,
        "booked": booked["booked"],
        "way": run.version("way", 2),
        "began": began,
        "number": number,
        "name": name,
    }


@holdfast.task
async def fails(run: holdfast.Run) -> None:
    try:
        await run.call(decline)
    except holdfast.Refused:
        await run.call(raises)


@holdfast.task
async def letter(run: holdfast.Run, to: str) -> Json:
    try:
        return {"posted": await run.call(post_letter, to=to)}
    except holdfast.StepSkipped:
        return {"posted": None}


@holdfast.task
async def mails(run: holdfast.Run, to: str) -> Json:
    return {"mail": (await run.call(send_mail, to=to))["id"]}


@holdfast.task
async def nap(run: holdfast.Run) -> str:
    await run.sleep(300 * 86_400)
    return "awake"


@holdfast.task
async def asks(run: holdfast.Run, who: str) -> Json:
    answer = await run.approve(f"greet {who}?", who=who)
    return {"granted": answer.granted, "by": answer.by, "note": answer.note}


GATE = holdfast.Gate(
    allow=[look, pay],
    limits={pay: holdfast.Limit(argument="cents", per_call=50_000, per_task=100_000)},
    approve={pay: holdfast.Above(argument="cents", per_call=20_000)},
)


@holdfast.task(gate=GATE)
async def order(run: holdfast.Run, sums: list[int]) -> list[Any]:
    told: list[Any] = []
    for cents in sums:
        try:
            told.append((await run.call(pay, cents=cents))["id"])
        except holdfast.GateRefused as error:
            told.append(error.rule)
    return told


@holdfast.task
async def buy(run: holdfast.Run, cents: int) -> Json:
    """Its worker is killed inside the payment."""
    await run.call(look, query="price")
    receipt = await run.call(charge, token="secret://billing", cents=cents)
    return {"receipt": receipt["id"], "paid": cents}


@holdfast.task
async def later(run: holdfast.Run, who: str) -> str:
    """Nobody served it."""
    return (await run.call(look, query=who))["query"]


# The address is read when this file is loaded, by each worker anew.
clerk = holdfast.Agent(
    name="clerk",
    model=holdfast.Model(
        "model-1",
        holdfast.Endpoint(name="provider", url=_url("MODEL"), wire="openai", key="secret://provider"),
        price=holdfast.Price(input=3, output=15),
        settings={"max_tokens": 200},
    ),
    instructions="You buy what is asked for. Look first, pay, then say in one sentence what was bought.",
    tools=[look, write_part, pay, holdfast.remember],
    scratch=True,
    max_turns=10,
    gate=GATE,
)

served = [trip, fails, letter, mails, nap, asks, order, buy, clerk]
tasks = [*served, later]
