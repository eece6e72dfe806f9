"""absurd over PostgreSQL: tasks of steps that do nothing. Runs in the peers' own venv.

    python bench/peers/absurd_steps.py --folder DIR --url postgresql://... --tasks 50 --steps 20 [--intent]

Its natural form looks the step up, and records its result after it. `--intent` adds what a durable intent costs there:
a step of its own before each. One worker has one connection, so several run in this process. The tables come from the
package `absurdctl`. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time

import absurdctl
import psycopg
from absurd_sdk import AsyncAbsurd, AsyncTaskContext

ORDER: dict[str, object] = {  # as in ../subject.py
    "customer": {"id": "cus_8f2k1", "name": "Ada Example", "address": {"street": "Long Road 12", "city": "Leiden"}},
    "lines": [{"article": f"A-{number}", "text": "one year of storage", "cents": 1_200} for number in range(3)],
    "reason": "renewal of the yearly plan, asked for by the customer",
}
WORKERS = 8


async def charge(card: str, cents: int, order: dict[str, object]) -> dict[str, object]:
    return {"id": f"ch_{cents}", "cents": cents}


async def intend(card: str, cents: int, order: dict[str, object]) -> None:
    return None


class Running:
    """The workers of one measurement; they end when the last task has."""

    def __init__(self, url: str, queue: str, tasks: int, *, intent: bool) -> None:
        self.left, self.intent = tasks, intent
        self.apps = [AsyncAbsurd(url, queue_name=queue) for _ in range(min(tasks, WORKERS))]
        for app in self.apps:
            app.register_task("many")(self.many)

    async def many(self, given: dict[str, int], task: AsyncTaskContext) -> int:
        for cents in range(given["steps"]):
            if self.intent:
                await task.step("intend", lambda cents=cents: intend("tok_1", cents, ORDER))
            await task.step("charge", lambda cents=cents: charge("tok_1", cents, ORDER))
        self.left -= 1
        if not self.left:
            for app in self.apps:
                app.stop_worker()
        return given["steps"]

    async def run(self, tasks: int, steps: int) -> float:
        await self.apps[0].create_queue()
        made = [await self.apps[0].spawn("many", {"steps": steps}) for _ in range(tasks)]
        each = -(-tasks // len(self.apps))
        began = time.perf_counter()
        await asyncio.gather(*(app.start_worker(concurrency=each, poll_interval=0.01) for app in self.apps))
        took = time.perf_counter() - began
        last = await self.apps[0].fetch_task_result(made[-1]["task_id"])
        assert last is not None
        assert last.result == steps
        for app in self.apps:
            await app.close()
        return took


async def measure(url: str, tasks: int, steps: int, *, intent: bool) -> float:
    await Running(url, "warm", 1, intent=intent).run(1, 3)
    return await Running(url, "run", tasks, intent=intent).run(tasks, steps)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder")
    parser.add_argument("--url", required=True)
    parser.add_argument("--tasks", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--intent", action="store_true")
    options = parser.parse_args()
    with psycopg.connect(options.url, autocommit=True) as db:
        db.execute(absurdctl.BUNDLED_SCHEMA_SQL)
    took = asyncio.run(measure(options.url, options.tasks, options.steps, intent=options.intent))
    print(json.dumps({"steps_per_s": options.tasks * options.steps / took}))


if __name__ == "__main__":
    main()
