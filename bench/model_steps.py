"""What recording a model call costs: a long talk, and one call beside the same without Holdfast.

    python bench/model_steps.py                  5,000 turns, then 300 calls with 32 KB of prompt
    python bench/model_steps.py --turns 500      a shorter talk
    python bench/model_steps.py --json           one JSON object on standard output

The talk is with a model that answers at once and without a network, so that a turn's time is the
time of recording it. The calls go to the scripted model server over loopback, each prompt another
one; a plain call and a recorded call take turns, so that a noisy neighbour meets both. A timing
never fails anything here: the figures are read by people.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import holdfast
from holdfast.runtime.models.reply import Reply, Route, StopReason, Text, Usage
from holdfast.runtime.models.request import Request, checked_request
from holdfast.runtime.task.content import content_bytes
from holdfast.testing.model_server.process import start
from holdfast.testing.model_server.script import Answer, Script

SAID_CHARS = 1_500  # of a user's message; a question with a paragraph or two pasted in
REPLY_CHARS = 2_500
BLOCKS = 10
WARM = 20

Figures = dict[str, Any]  # Any: numbers by name
_syllables = [one + two for one in "bdfklmnprstvz" for two in ("a", "e", "i", "o", "u", "er", "on")]


class Parrot:
    """A model that answers at once."""

    def __init__(self) -> None:
        self.count = 0
        self.bytes = 0

    async def ask(self, request: Request, **_more: object) -> Reply:
        self.count += 1
        reply = Reply(
            parts=(Text(text=said(REPLY_CHARS, f"reply {self.count}")),),
            stop=StopReason.END,
            usage=Usage(input_tokens=1_000, output_tokens=600, cached_tokens=900),
            ids={"reply": f"chatcmpl-{self.count:08}", "model": "model-1", "stop": "stop"},
            route=Route(endpoint="first", region="eu", wire="openai", cold_tokens=100, body_sha256="0" * 64),
        )
        self.bytes += len(content_bytes(reply.message(prefix="r1")))
        return reply


def _words() -> list[str]:
    """Words that are as often and as rare as those of a language, so that text packs like text."""
    chance = random.Random(7)
    words = ["".join(chance.choices(_syllables, k=chance.randint(1, 4))) for _ in range(6_000)]
    return [word for rank, word in enumerate(words) for _ in range(max(1, 2_000 // (rank + 1)))]


WORDS = _words()


def said(chars: int, name: str) -> str:
    chance = random.Random(name)
    return f"{name}: {' '.join(chance.choices(WORDS, k=chars // 4 + 1))}"[:chars]


async def measure_talk(folder: Path, turns: int) -> Figures:
    parrot = Parrot()
    model = holdfast.Model("model-1", parrot, price=holdfast.Price(input=3, output=15))
    times: list[float] = []
    said_bytes = [0]

    @holdfast.task
    async def talks(run: holdfast.Run) -> int:
        talk = run.talk(system="Be brief.")
        for turn in range(turns):
            text = said(SAID_CHARS, f"turn {turn}")
            began = time.perf_counter()
            talk.say(text)
            await run.ask(model, talk)
            times.append(time.perf_counter() - began)
            said_bytes[0] += len(content_bytes(talk.messages[-2]))
        return len(talk)

    async with holdfast.open(folder / "journal.db", tasks=[talks]) as hf:
        await (await hf.submit(talks)).result()
    size = sum(file.stat().st_size for file in folder.glob("journal.db*"))
    unique = said_bytes[0] + parrot.bytes
    block = max(turns // BLOCKS, 1)
    by_block = [statistics.median(times[i : i + block]) * 1_000 for i in range(0, turns, block)]
    return {
        "turns": turns,
        "message_bytes": unique,
        "disk_bytes": size,
        "of_messages": size / unique,
        "record_ms_by_block": by_block,
        "last_of_first": by_block[-1] / by_block[0],
        "asks": parrot.count,
    }


async def measure_calls(folder: Path, calls: int, prompt_bytes: int) -> Figures:
    plain: list[float] = []
    recorded: list[float] = []
    script = Script(answers=(Answer(text=said(400, "answer")),))
    async with start(script) as server:
        endpoint = holdfast.Endpoint(name="first", url=server.url, wire="openai")
        model = holdfast.Model("model-1", endpoint)

        @holdfast.task
        async def asks(run: holdfast.Run) -> int:
            for number in range(calls + WARM):
                text = said(prompt_bytes, f"plain {number}")
                message = {"role": "user", "parts": [{"type": "text", "text": text}]}
                request = checked_request(model="model-1", messages=[message])
                began = time.perf_counter()
                await model.chat.ask(request)
                plain.append(time.perf_counter() - began)
                text = said(prompt_bytes, f"recorded {number}")
                began = time.perf_counter()
                talk = run.talk()
                talk.say(text)
                await run.ask(model, talk)
                recorded.append(time.perf_counter() - began)
            return calls

        async with holdfast.open(folder / "journal.db", tasks=[asks]) as hf:
            await (await hf.submit(asks)).result()
    one, other = (statistics.median(times[WARM:]) * 1_000 for times in (plain, recorded))
    return {
        "calls": calls,
        "prompt_bytes": prompt_bytes,
        "plain_ms": one,
        "recorded_ms": other,
        "overhead_ms": other - one,
    }


def shown(result: Figures) -> str:
    talk, calls = result["talk"], result["calls"]
    return (
        f"{talk['turns']:,} turns: {talk['disk_bytes']:,} bytes on disk, "
        f"{talk['of_messages']:.2f} of the messages' own {talk['message_bytes']:,}; "
        f"a turn is recorded in {talk['record_ms_by_block'][0]:.3f} ms at first, "
        f"{talk['record_ms_by_block'][-1]:.3f} ms at last ({talk['last_of_first']:.2f})\n"
        f"{calls['calls']:,} calls with {calls['prompt_bytes']:,} bytes of prompt: plain "
        f"{calls['plain_ms']:.3f} ms, recorded {calls['recorded_ms']:.3f} ms, "
        f"overhead {calls['overhead_ms']:.3f} ms (medians)"
    )


async def measure(options: argparse.Namespace) -> Figures:
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        for name in ("talk", "calls"):
            (Path(folder) / name).mkdir(mode=0o700)
        return {
            "talk": await measure_talk(Path(folder) / "talk", options.turns),
            "calls": await measure_calls(Path(folder) / "calls", options.calls, options.prompt_bytes),
            "python": platform.python_version(),
            "machine": platform.machine(),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=5_000)
    parser.add_argument("--calls", type=int, default=300)
    parser.add_argument("--prompt-bytes", type=int, default=32_768)
    parser.add_argument("--folder", help="where to measure (default: the temporary folder)")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    result = asyncio.run(measure(options))
    print(json.dumps(result) if options.json else shown(result))


if __name__ == "__main__":
    main()
