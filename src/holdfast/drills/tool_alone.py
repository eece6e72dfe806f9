"""Inside a shadow: one tool of the agent's own app is called once, with the arguments of its newest recorded call.

    python -m holdfast.drills.tool_alone APP HOME list        the tools, and which of them have a recorded call
    python -m holdfast.drills.tool_alone APP HOME run TOOL    one call; prints how it ended

No journal is written and nothing is retried. The tool has the shadow's world: no network but its sandbox or the drill's
recorder, and every file that it or a program of it writes lands in the drill's folder. Secrets stay handles.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import sys
from pathlib import Path
from typing import Any, cast

from holdfast.app.binder import open_journal
from holdfast.app.loading import App, load_app
from holdfast.errors import HoldfastError, text_of
from holdfast.journal.contract import Filter
from holdfast.journal.records import StepView, TaskView
from holdfast.layout.agent_home import load_home
from holdfast.runtime.tool.child import CALL_FIELDS, ChildCall
from holdfast.runtime.tool.tool import Call, Tool

TASKS_READ = 1_000  # the newest ones
SCRATCH = "/srv/holdfast-drill-scratch"  # what a tool finds as `call.scratch`
WORK = "/srv/holdfast-drill-work"  # the folder in which the tool runs
TEXT_CHARS = 200

Step = tuple[TaskView, StepView]


def main(app: str, home: str, what: str, name: str = "") -> None:
    tools = tools_of(load_app(app))
    recorded = asyncio.run(newest_calls(Path(home)))
    if what == "list":
        _say([_seen(one, one.name in recorded) for one in tools.values()])
        return
    for one in (SCRATCH, WORK):
        Path(one).mkdir(mode=0o700, parents=True, exist_ok=True)
    os.chdir(WORK)  # a worker may run anywhere: what a tool writes there is in no folder of the agent
    _say({"ended": asyncio.run(call_once(tools[name], *recorded[name]))})


def _say(value: object) -> None:
    """On a line of its own: the app and the tool may print too."""
    sys.stdout.write(f"\n{json.dumps(value)}\n")


def tools_of(app: App) -> dict[str, Tool[..., Any]]:
    """Those of the app, and those that the code of its tasks names."""
    found = {name: tool for task in app.tasks.values() for name, tool in task.called.items()}
    named = {tool.name: tool for tool in found.values()} | app.tools
    return {name: tool for name, tool in sorted(named.items()) if not name.startswith("@")}


def _seen(tool: Tool[..., Any], recorded: bool) -> dict[str, object]:
    return {"tool": tool.name, "recorded": recorded, "sandbox": tool.sandbox is not None}


async def newest_calls(home: Path) -> dict[str, Step]:
    """The newest call of each tool that the journal still has, with the task it was made in."""
    journal, _ = await open_journal(load_home(home).journal, create=False)
    found: dict[str, Step] = {}
    try:
        for row in await journal.list_tasks(Filter(limit=TASKS_READ)):
            if row.erased:
                continue
            try:
                view = await journal.read_task(row.task_id)
            except HoldfastError:
                continue  # damaged: others may have it too
            for step in reversed(view.steps.values()):
                if step.step is not None:
                    found.setdefault(step.tool, (view, step))
    finally:
        await journal.close()
    return found


async def call_once(tool: Tool[..., Any], view: TaskView, step: StepView) -> str:
    """How it ended, for people."""
    loop = asyncio.get_running_loop()
    call: Any = Call(
        view.task_id, step.ordinal, step.effect_key, 0, 1, loop.time() + tool.timeout_s, lambda: None, tool.effect
    )
    call.give_scratch(Path(SCRATCH))
    if tool.needs_child:
        call = ChildCall(**{name: getattr(call, name) for name in CALL_FIELDS}, folder=SCRATCH)
    try:
        async with asyncio.timeout(tool.timeout_s):
            value: Any = tool.begin(call, cast("dict[str, Any]", step.args))
            if inspect.isawaitable(value):
                await value
    except TimeoutError:
        return f"timed out after {tool.timeout_s:g} s"
    except Exception as error:  # noqa: BLE001 - a tool may raise anything: what it wrote counts
        return f"raised {type(error).__name__}: {text_of(error)[:TEXT_CHARS]}"
    return "returned"


if __name__ == "__main__":
    main(*sys.argv[1:])
