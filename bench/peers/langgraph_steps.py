"""LangGraph over SQLite or PostgreSQL: steps that do nothing. Runs in the peers' own venv.

    python bench/peers/langgraph_steps.py --folder DIR --tasks 50 --steps 20 --form graph [--url postgresql://...]

`graph`: one node in a loop, `durability="sync"`: a checkpoint after each step, synced before the
next begins. `functional`: an entrypoint that awaits tasks one after the other; their results are
written as they come. Neither writes anything before a step. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import time
from pathlib import Path
from typing import TypedDict

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.func import entrypoint, task
from langgraph.graph import END, START, StateGraph

ORDER: dict[str, object] = {  # as in ../subject.py
    "customer": {"id": "cus_8f2k1", "name": "Ada Example", "address": {"street": "Long Road 12", "city": "Leiden"}},
    "lines": [{"article": f"A-{number}", "text": "one year of storage", "cents": 1_200} for number in range(3)],
    "reason": "renewal of the yearly plan, asked for by the customer",
}


class State(TypedDict):
    left: int
    last: str
    order: dict[str, object]


def make_graph(saver: BaseCheckpointSaver):
    async def charge(state: State) -> State:
        return {"left": state["left"] - 1, "last": f"ch_{state['left']}", "order": state["order"]}

    builder = StateGraph(State)
    builder.add_node("charge", charge)
    builder.add_edge(START, "charge")
    builder.add_conditional_edges("charge", lambda state: "charge" if state["left"] else END)
    return builder.compile(checkpointer=saver)


def make_functional(saver: BaseCheckpointSaver):
    @task
    async def charge(card: str, cents: int, order: dict[str, object]) -> dict[str, object]:
        return {"id": f"ch_{cents}", "cents": cents}

    @entrypoint(checkpointer=saver)
    async def many(steps: int) -> int:
        for cents in range(steps):
            await charge("tok_1", cents, ORDER)
        return steps

    return many


async def run(program, form: str, tasks: int, steps: int, name: str) -> float:
    async def one(number: int) -> None:
        config = {"configurable": {"thread_id": f"{name}-{number}"}, "recursion_limit": steps + 10}
        if form == "graph":
            done = await program.ainvoke({"left": steps, "last": "", "order": ORDER}, config, durability="sync")
            assert done["left"] == 0
        else:
            assert await program.ainvoke(steps, config, durability="sync") == steps

    began = time.perf_counter()
    await asyncio.gather(*(one(number) for number in range(tasks)))
    return time.perf_counter() - began


async def measure(folder: Path, url: str | None, form: str, tasks: int, steps: int) -> float:
    kind, place = (AsyncPostgresSaver, url) if url else (AsyncSqliteSaver, str(folder / "langgraph.sqlite"))
    async with kind.from_conn_string(place) as saver:
        await saver.setup()
        program = make_graph(saver) if form == "graph" else make_functional(saver)
        await run(program, form, 1, 3, "warm")
        return await run(program, form, tasks, steps, "run")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--tasks", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--form", choices=("graph", "functional"), required=True)
    parser.add_argument("--url", help="a database in PostgreSQL instead of a file")
    options = parser.parse_args()
    took = asyncio.run(measure(options.folder, options.url, options.form, options.tasks, options.steps))
    print(json.dumps({"steps_per_s": options.tasks * options.steps / took}))


if __name__ == "__main__":
    main()
