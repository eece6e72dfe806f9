"""An agent that pays and mails through ledgers in files: `trip.py FOLDER MODEL_URL [inside]`.

With `inside` it says so and waits when the payment's effect is done and its result is not yet
recorded. Far ends: charge does one effect per key, mail does each that it is sent and can be asked.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import holdfast

FOLDER, URL = Path(sys.argv[1]), sys.argv[2]
WAITS = sys.argv[3:4] == ["inside"]
FAR = FOLDER.parent / "far"  # beside the journal: a crash shim does not count it


def _note(ledger: str, line: str) -> None:
    fd = os.open(FAR / ledger, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(fd, f"{line}\n".encode())
    os.close(fd)


def _lines(ledger: str) -> list[str]:
    path = FAR / ledger
    return path.read_text().splitlines() if path.exists() else []


@holdfast.tool(effect=holdfast.Read())
async def search(query: str) -> list[str]:
    return [f"flight 7 to {query}"]


@holdfast.tool(effect=holdfast.Read())
async def weather(place: str) -> str:
    return "sunny for flight 7"


@holdfast.tool(effect=holdfast.Keyed(window_s=86_400, fingerprint="checked", refusals_stored=False))
async def charge(call: holdfast.Call, card: str, cents: int) -> str:
    if call.effect_key not in _lines("charges"):
        _note("charges", call.effect_key)
    if WAITS:
        print("inside", flush=True)
        await asyncio.sleep(60)
    return f"paid {cents}"


@holdfast.tool(effect=holdfast.Queryable(max_delay_s=0.01))
async def send_mail(call: holdfast.Call, to: str) -> str:
    _note("mails", call.effect_key)
    if WAITS:
        print("inside", flush=True)
        await asyncio.sleep(60)
    return "mail 1 sent"


@send_mail.find
async def find_mail(call: holdfast.Call, to: str) -> holdfast.Found | holdfast.Absent:
    found = call.effect_key in _lines("mails")
    return holdfast.Found("mail 1 sent") if found else holdfast.Absent()


model = holdfast.Model("model-1", holdfast.Endpoint(name="first", url=URL, wire="openai"), settings={"max_tokens": 99})
agent = holdfast.Agent(name="ada", model=model, instructions="You are Ada.", tools=[search, weather, charge, send_mail])


async def main() -> None:
    FAR.mkdir(exist_ok=True)
    settings = holdfast.Settings(pace=0.02, check_after_crash=False)
    async with holdfast.open(FOLDER / "journal.db", tasks=[agent], settings=settings):
        print("answer", await agent.do(sys.stdin.readline().strip(), request_id="1"), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
