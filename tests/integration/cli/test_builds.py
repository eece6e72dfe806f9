"""A rolling deploy: two builds of one app side by side, in processes of their own; the old one drains and ends."""

from __future__ import annotations

from collections.abc import Callable

from holdfast_proofs.support.command_line import Commands, Worker

Start = Callable[..., Worker]

APP = """
import asyncio, sys
from pathlib import Path
import holdfast

BUILD = "{build}"
GO = Path(__file__).parent / "go"

@holdfast.tool(effect=holdfast.Idempotent(max_delay_s=0.05))
async def ship(waits: bool) -> str:
    sys.stderr.write("SHIPPING\\n")
    sys.stderr.flush()
    while waits and not GO.exists():
        await asyncio.sleep(0.01)
    return BUILD

@holdfast.task(on_change="pin")
async def order(run: holdfast.Run, waits: bool) -> list[str]:
    return [BUILD, await run.call(ship, waits=waits)]

tasks = [order]
"""


def submit(hf: Commands, app: str, request: str) -> str:
    return hf("submit", f"{app}.py:tasks", request, "--task", "order", "--no-follow").out.strip()


def test_the_old_build_finishes_what_it_began_and_the_new_one_the_rest(hf: Commands, start_worker: Start) -> None:
    for build in ("v1", "v2"):
        (hf.folder / f"{build}.py").write_text(APP.format(build=build))
    old = start_worker("--build", "v1", "--grace", "0.2", app="v1.py:tasks")
    begun = submit(hf, "v1", '{"waits": true}')
    old.wait_said("SHIPPING")
    new = start_worker("--build", "v2", app="v2.py:tasks")
    assert new.wait_event("serving")["build"] == "v2"
    assert old.stop() == 0

    later = submit(hf, "v2", '{"waits": false}')
    assert new.wait_event("run-ended")["task_id"] == later
    findings = hf.look("doctor", "--json", code=1).json["findings"]
    (warned,) = [one for one in findings if one["check"] == "queue"]
    assert "no live worker has build v1, to which 1 open task is pinned (order" in warned["text"]
    assert "holdfast worker APP --build v1`" in warned["mend"]
    assert "--build NEW --take-over v1`" in warned["mend"]

    drain = start_worker("--build", "v1", "--drain", app="v1.py:tasks")
    drain.wait_said("SHIPPING")
    (hf.folder / "go").touch()
    assert drain.wait_end() == 0
    assert any('"drained"' in line for line in drain.said)
    assert new.stop() == 0
    for task_id, build in ((begun, "v1"), (later, "v2")):
        shown = hf.look("task", "show", task_id, "--json").json
        assert (shown["result"], shown["build"]) == ([build, build], build)


def test_a_worker_whose_tasks_are_pinned_must_say_its_build(hf: Commands) -> None:
    (hf.folder / "v1.py").write_text(APP.format(build="v1"))
    done = hf("worker", "v1.py:tasks", code=2)
    assert "task order is pinned to the build that begins it, but no build is named" in done.err
    assert "holdfast worker APP --build ID" in done.err
    assert "has at most 100" in hf("worker", "v1.py:tasks", "--build", "a b", code=2).err
