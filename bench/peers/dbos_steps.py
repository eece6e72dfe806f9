"""DBOS over SQLite or PostgreSQL: workflows of steps that do nothing. Runs in the peers' own venv.

    python bench/peers/dbos_steps.py --folder DIR --tasks 50 --steps 20 [--intent] [--url postgresql://...]

Its natural form records a step's result after the step, so a crash inside the step leaves no
trace of it. `--intent` adds what a durable intent costs there: a step of its own before each.
Prints one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import time
from pathlib import Path

from dbos import DBOS

ORDER: dict[str, object] = {  # as in ../subject.py
    "customer": {"id": "cus_8f2k1", "name": "Ada Example", "address": {"street": "Long Road 12", "city": "Leiden"}},
    "lines": [{"article": f"A-{number}", "text": "one year of storage", "cents": 1_200} for number in range(3)],
    "reason": "renewal of the yearly plan, asked for by the customer",
}


@DBOS.step()
async def intend(card: str, cents: int, order: dict[str, object]) -> None:
    return None


@DBOS.step()
async def charge(card: str, cents: int, order: dict[str, object]) -> dict[str, object]:
    return {"id": f"ch_{cents}", "cents": cents}


@DBOS.workflow()
async def many(steps: int) -> int:
    for cents in range(steps):
        await charge("tok_1", cents, ORDER)
    return steps


@DBOS.workflow()
async def many_intended(steps: int) -> int:
    for cents in range(steps):
        await intend("tok_1", cents, ORDER)
        await charge("tok_1", cents, ORDER)
    return steps


async def run(tasks: int, steps: int, workflow: object) -> float:
    began = time.perf_counter()
    handles = [await DBOS.start_workflow_async(workflow, steps) for _ in range(tasks)]
    assert set(await asyncio.gather(*(handle.get_result() for handle in handles))) == {steps}
    return time.perf_counter() - began


async def measure(tasks: int, steps: int, *, intent: bool) -> float:
    workflow = many_intended if intent else many
    await run(1, 3, workflow)
    return await run(tasks, steps, workflow)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--tasks", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--intent", action="store_true")
    parser.add_argument("--url", help="a database in PostgreSQL instead of a file")
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    DBOS(
        config={
            "name": "bench",
            "system_database_url": options.url or f"sqlite:///{options.folder / 'dbos.sqlite'}",
            "run_admin_server": False,
        }
    )
    DBOS.launch()
    took = asyncio.run(measure(options.tasks, options.steps, intent=options.intent))
    print(json.dumps({"steps_per_s": options.tasks * options.steps / took}), flush=True)
    DBOS.destroy()


if __name__ == "__main__":
    main()
