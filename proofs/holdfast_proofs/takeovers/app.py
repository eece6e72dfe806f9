"""The load: steps of every class that take a moment before and after their request, lines for the memory, and mail.

A fault so finds steps before their request, steps whose effect has happened, notes, and letters in every state. In a
worker of the proof's own red runs one rule of the product is taken out here, where the worker loads its code.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from typing import Any

import msgspec

import holdfast
from holdfast.core.mail import Letter
from holdfast.runtime.tool.tool import Call
from holdfast_proofs.soak.app import class_of, make_tools
from holdfast_proofs.support.counted_tools import KEYED, TIMEOUT_S, Function

TASK = "takeover"
APP = "holdfast_proofs.takeovers.app:app"
PLANT = "TAKEOVERS_PLANT"  # which rule is taken out in this process
MAIL_SERVICE = "TAKEOVERS_MAIL"  # the address of the service that counts letters
PAUSE_S = 0.1
EARLY_S = 3.0
MEMORY_EVERY = 4  # of so many tasks one writes to MEMORY.md


@holdfast.task(name=TASK)
async def takeover(run: holdfast.Run, urls: dict[str, str], number: int, steps: int) -> int:
    for step in range(1, steps + 1):
        name = class_of(number, step)
        await run.call(TOOLS[name], url=urls.get(name, ""), number=step)
    await run.note(note_of(number), to="day" if number % MEMORY_EVERY else "MEMORY")
    return steps


def note_of(number: int) -> str:
    return f"order {number} is done."


def slow(function: Function) -> Function:
    async def called(call: Call, url: str, number: int) -> Any:  # Any: JSON of the far end
        await asyncio.sleep(PAUSE_S)
        found = await function(call, url, number)
        await asyncio.sleep(PAUSE_S)
        return found

    return called


@holdfast.on_mail
async def read_letter(run: holdfast.Run, letter: Letter) -> None:
    body: Any = letter.body  # Any: of the sender, see relay_lab/app.py
    await run.call(keep_letter, name=body["m"])


@holdfast.tool(effect=KEYED, timeout_s=TIMEOUT_S, http_only=True)
async def keep_letter(call: Call, name: str) -> object:
    await asyncio.sleep(PAUSE_S)
    found = (await call.http.post(f"{os.environ[MAIL_SERVICE]}/effects", json={"m": name})).json()["id"]
    await asyncio.sleep(PAUSE_S)
    return found


TOOLS = make_tools(slow)
app = holdfast.App([takeover, read_letter], tools=[*TOOLS.values(), keep_letter])


def plant(name: str) -> None:
    """Take out one rule. Names: role, waiting; mail-twice: each copy of a letter is a letter of its own; mail-early:
    relays hear that a letter was received before the journal has it."""
    if name.startswith("mail-"):
        plant_mail(name)
        return
    from holdfast.app.instances import standing

    acting = {
        "role": (standing.StandingKind.STANDBY,),  # it acts whatever its role is
        "waiting": (standing.StandingKind.COPY,),  # a folder that only waited gets its turn
    }[name]
    allowed = (standing.StandingKind.ALONE, standing.StandingKind.PRIMARY, *acting)
    patched: Any = standing.Standing
    patched.may_act = property(lambda self: self.kind in allowed)


def plant_mail(name: str) -> None:
    from holdfast.app.mail.intake import Intake
    from holdfast.core.ids import EffectKey
    from holdfast.core.mail import Delivery

    take, commit = Intake.take, Intake._commit_letter

    async def each_copy(self: Intake, delivery: Delivery, letter: Letter) -> str:
        other = EffectKey(os.urandom(16).hex())
        return await commit(self, delivery, msgspec.structs.replace(letter, key=other))

    async def early(self: Intake, deliveries: Sequence[Delivery]) -> None:
        if deliveries:
            await self.mailbox.received(deliveries, mark=await self.newest_record())
            await asyncio.sleep(EARLY_S)
        await take(self, deliveries)

    if name == "mail-twice":
        Intake._commit_letter = each_copy
    else:
        Intake.take = early


if os.environ.get(PLANT):
    plant(os.environ[PLANT])
