"""tool-files: each tool of the agent's own app runs alone on a machine of its own, and what is left there is named.

The machine's root is made of overlays, so every file that the tool or any program of it wrote is in the upper layers,
whatever wrote it: a thread, a child, another language. A new machine for each tool, which dies with everything in it,
tells apart who wrote what. What is in `run.scratch` or covered by backups is no finding. The tool runs in an empty
folder: what it writes there is named `./NAME`, and is wherever the worker was started.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager

import msgspec

from holdfast.core.decoding import decode_json
from holdfast.drills.production import gone_in_copy
from holdfast.drills.run import DrillRun, Json
from holdfast.drills.tool_alone import SCRATCH, WORK
from holdfast.errors import NotProven
from holdfast.host.shadow import Shadow
from holdfast.layout.covering import is_no_loss, judge_name
from holdfast.surfaces import report as out

ALONE_S = 120.0  # a tool that takes longer is ended; what it wrote until then counts
TOOLS_MAX = 200
FILES_MAX = 200  # of one tool that a report names
FILES_SHOWN = 5  # in a finding
CONTROL = f"{tempfile.gettempdir()}/holdfast-drill-control"  # the drill itself writes it, to see that it sees
NO_BYTECODE = {"PYTHONDONTWRITEBYTECODE": "1"}


class ToolSeen(msgspec.Struct, frozen=True, kw_only=True):
    """One tool of the app."""

    tool: str
    recorded: bool  # the journal has a call of it
    sandbox: bool


def tool_files(run: DrillRun) -> None:
    run.production.check_opens()
    if run.production.journal is None:
        raise NotProven("the agent has no journal, so no call of a tool is recorded", hint="run a task first")
    run.step("each tool runs alone, with the arguments of its newest call")
    tools = _find_tools(run)
    recorded = [one for one in tools if one.recorded]
    if not recorded:
        raise NotProven("the journal has no call of a tool of the app", hint="run a task first")
    run.event("baseline_taken", f"{len(tools)} tools, {len(recorded)} with a recorded call")
    run.files = [_ran(run, one, number) for number, one in enumerate(tools)]
    run.event("steady_state", f"{len(recorded)} tools ran alone")
    for one in run.files:
        if one.files:
            shown = ", ".join(one.files[:FILES_SHOWN])
            more = f" and {len(one.files) - FILES_SHOWN} more" if len(one.files) > FILES_SHOWN else ""
            run.find("major", f"the tool {one.tool} leaves files that no backup has: {shown}{more}")
    broken = [f"{one.tool} {one.ended}" for one in run.files if one.ended not in ("", "returned")]
    if broken:
        run.deviations.append(f"did not end well, so later files of it are not known: {'; '.join(broken)}")
    skipped = [one.tool for one in tools if not one.recorded]
    if skipped:
        run.deviations.append(f"not run, because no call of them is recorded: {', '.join(skipped)}")


def _find_tools(run: DrillRun) -> list[ToolSeen]:
    with _machine(run, "tools") as machine:
        before = machine.written()
        run.run(("sh", "-c", 'echo x > "$1"', "sh", CONTROL))
        run.event("control_written", CONTROL, actor="drill")
        seen = CONTROL in _new(before, machine)
        run.require("scan", seen, f"a control file is {'seen' if seen else 'not seen'} in the layers of the shadow")
        done = run.run(_words(run, "list"), cwd=run.production.home.state, more=NO_BYTECODE)
        if done.code != 0:
            raise NotProven(
                f"the app {run.production.home.settings.drills.app} cannot be loaded: {done.said}",
                hint="`[drills] app` is counted from the agent's folder",
            )
        return decode_json(done.out.splitlines()[-1], list[ToolSeen])[:TOOLS_MAX]


def _ran(run: DrillRun, tool: ToolSeen, number: int) -> out.ToolFiles:
    if not tool.recorded:
        return out.ToolFiles(tool=tool.tool, ran="not run", ended="", files=())
    with _machine(run, f"tool-{number}") as machine:
        before = machine.written()
        process = machine.start(
            _words(run, "run", tool.tool),
            cwd=run.production.home.state,
            more={**NO_BYTECODE, **run.own_environment()},
            stderr=subprocess.DEVNULL,
        )
        try:
            said, _ = process.communicate(timeout=ALONE_S)
            ended = _ended(said)
        except subprocess.TimeoutExpired:
            ended = f"was ended after {ALONE_S:g} s"
        files = tuple(sorted(map(_shown, _outside(run, _new(before, machine)))))[:FILES_MAX]
    ran = "sandbox" if tool.sandbox else "function"
    run.event("tool_ran", f"{tool.tool}: {ended}; {len(files)} files", actor="drill")
    return out.ToolFiles(tool=tool.tool, ran=ran, ended=ended, files=files)


def _ended(said: bytes) -> str:
    try:
        last: Json = json.loads(said.splitlines()[-1])
        return str(last["ended"])
    except (ValueError, IndexError, KeyError, TypeError):
        return "ended without a word"


def _machine(run: DrillRun, name: str) -> AbstractContextManager[Shadow]:
    return run.machine(gone=gone_in_copy(run.production.home), copies=run.copies, name=name)


def _words(run: DrillRun, *words: str) -> tuple[str, ...]:
    home = run.production.home
    program = (sys.executable, "-P", "-m", "holdfast.drills.tool_alone")
    return (*program, home.settings.drills.app, str(home.folder), *words)


def _new(before: Mapping[str, object], machine: Shadow) -> set[str]:
    return {path for path, mark in machine.written().items() if before.get(path) != mark}


def _outside(run: DrillRun, paths: Iterable[str]) -> Iterable[str]:
    """Those that nothing brings back."""
    home = run.production.home
    state, own = f"{home.state}/", home.covering().own
    for path in paths:
        if path.startswith(f"{SCRATCH}/") or "/__pycache__/" in path or path == f"{WORK}/":
            continue
        if path.startswith(f"{WORK}/"):
            yield f".{path.removeprefix(WORK)}"
            continue
        inner = path.removeprefix(state)
        if inner == path or _left_out(inner, own):
            yield path


def _shown(path: str) -> str:
    """A report is UTF-8; the name of a file is any bytes."""
    return os.fsencode(path).decode(errors="backslashreplace")


def _left_out(inner: str, own: str) -> bool:
    """Whether a backup leaves this path of the agent's folder out, and it is not Holdfast's own."""
    parts = inner.rstrip("/").split("/")
    for depth in range(1, len(parts) + 1):
        judged = judge_name("/".join(parts[:depth]), folder=depth < len(parts), own=own)
        if judged is not None:
            return not is_no_loss(judged.text)
    return False
