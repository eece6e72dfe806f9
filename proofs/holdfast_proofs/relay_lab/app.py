"""What the agents of the laboratory run: a task that sends, a handler that notes; and the events of the intake.

What is noted goes to the file of events before anything else happens with it, so that the order in the file is the
order of events: a commit before the delivery note that says so.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, cast

import holdfast
from holdfast.app.mail import mail_job
from holdfast.app.mail.intake import Intake
from holdfast.app.mail.resend import Resender
from holdfast.core.mail import Delivery, DeliveryNote, Letter
from holdfast.journal.contract import Journal
from holdfast.journal.sqlite.journal import SqliteJournal
from holdfast_proofs.relay_lab.events import AGENT, FILE, PLANT, RESEND, SEND, SERVICE, WINDOW_S, EventFile
from holdfast_proofs.relay_lab.planted import plant
from holdfast_proofs.support.counted_tools import TIMEOUT_S

EVENTS = EventFile(Path(os.environ.get(FILE, os.devnull)))
ME = os.environ.get(AGENT, "")  # empty where the process serves several agents
SERVICE_URL = os.environ.get(SERVICE, "")


@cache
def name_of(journal: Journal) -> str:
    """The agent whose journal it is: of several in one process, by its folder, aNN/home/journal.db."""
    return ME or cast(SqliteJournal, journal)._path.parent.parent.name


@holdfast.task(name=SEND)
async def send(run: holdfast.Run, lane: str, to: list[str], first: int, begin_ns: int, every_ns: int) -> int:
    """Messages `first`, `first` + 1, ... of a lane, one to each of `to`; the next when its time has come and the one
    before is stored."""
    me = name_of(run._writer.journal)
    for n, other in enumerate(to):
        at = begin_ns + n * every_ns
        await asyncio.sleep(max(0.0, (at - time.monotonic_ns()) / 1e9))
        name, number = f"{me} {lane} {first + n}", first + n
        EVENTS.add("send", a=me, m=name, by=other, th=lane, n=number, at=at if every_ns else 0)
        sent = await run.send(other, {"m": name, "n": number}, thread=lane)
        EVENTS.add("stored", a=me, m=name, k=sent["key"], info={"relays": len(sent["relays"])})
    return len(to)


@holdfast.on_mail
async def handle(run: holdfast.Run, letter: Letter) -> None:
    body: Any = letter.body  # Any: ours, see `send`
    info = {"missing": list(letter.missing)} if letter.missing else {}
    me = name_of(run._writer.journal)
    EVENTS.add(
        "handled", a=me, m=body["m"], k=letter.key, by=letter.sender, th=letter.thread, id=run.task_id, info=info
    )
    if SERVICE_URL:
        await run.call(leave_effect, name=body["m"])


@holdfast.tool(
    effect=holdfast.Keyed(window_s=WINDOW_S, fingerprint="checked", refusals_stored=True),
    timeout_s=TIMEOUT_S,
    http_only=True,
)
async def leave_effect(call: holdfast.Call, name: str) -> object:
    return (await call.http.post(f"{SERVICE_URL}/effects", json={"m": name})).json()["id"]


plant(os.environ.get(PLANT, ""))

# The intake, with a line for each thing that it has done.

_take, _commit_letter, _commit_note = Intake.take, Intake._commit_letter, Intake._commit_note


async def _noted_take(self: Intake, deliveries: Sequence[Delivery]) -> None:
    for one in deliveries:
        if one.letter is not None:
            EVENTS.add("delivery", a=name_of(self.journal), k=one.letter.key, by=one.letter.sender)
    await _take(self, deliveries)


async def _noted_letter(self: Intake, delivery: Delivery, letter: Letter) -> str:
    fault = await _commit_letter(self, delivery, letter)
    if not fault:
        EVENTS.add("committed", a=name_of(self.journal), k=letter.key, by=letter.sender)
    return fault


async def _noted_note(self: Intake, note: DeliveryNote) -> None:
    await _commit_note(self, note)
    for key in note.keys:
        EVENTS.add("delivered", a=name_of(self.journal), k=key, by=note.sender)


Intake.take, Intake._commit_letter, Intake._commit_note = _noted_take, _noted_letter, _noted_note
if os.environ.get(RESEND):  # the production times are of minutes and hours
    mail_job.Resender = partial(Resender, first_s=float(os.environ[RESEND]), look_s=1.0)
app = holdfast.App([send, handle], tools=[leave_effect])
