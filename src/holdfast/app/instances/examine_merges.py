"""What `holdfast doctor` finds about the memory that the agent's instances share."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

from holdfast.app.doctor import Finding, ok, warning
from holdfast.app.instances.merge_job import find_way, is_shared
from holdfast.core.clock import SystemClock, iso
from holdfast.errors import HoldfastError
from holdfast.instances.merge_state import load_state
from holdfast.layout.agent_home import AgentHome

LAG_MS = 600_000
SILENT_MS = 86_400_000  # after so long without a word an instance may be lost for good


def examine_merges(home: AgentHome) -> Iterator[Finding]:
    """Nothing for an agent that has one instance. Blocks."""
    try:
        if not is_shared(home):
            return
        way = find_way(home)
    except HoldfastError as error:
        yield warning("instances", error.message, error.hint)
        return
    if not way:
        fix = "set `folder` in [instances] of holdfast.toml to a folder that the hosts share"
        yield warning("instances", "nothing carries memory updates between the instances of this agent", fix)
    elif importlib.util.find_spec("loro") is None:
        yield warning("instances", "memory is not merged: a package is missing", "pip install 'holdfast[instances]'")
    else:
        yield from _merges(home, way)


def _merges(home: AgentHome, way: str) -> Iterator[Finding]:
    state, now_ms = load_state(home.instance), SystemClock().wall_ms()
    if state.trouble:
        fix = state.fix or f"look at the disk of {home.folder}, and at {way}"
        yield warning("instances", f"memory: {state.trouble}", fix)
    elif not state.peers:
        yield warning("instances", "this instance has not merged its memory yet", "start a worker in this folder")
    for name, one in sorted(state.peers.items()):
        late = bool(one.behind_ms) and now_ms - one.behind_ms >= LAG_MS
        kept = f"; the history of these files is kept for it until {iso(one.kept_until_ms)}" if late else ""
        reach = f"start the worker of {name}, or see that {way} reaches its host"
        if one.behind_ms and now_ms - max(one.behind_ms, one.heard_ms) >= SILENT_MS:
            reach += f"; if that instance is lost for good: `holdfast instance remove {name}`"
        if one.waits:
            yield warning("instances", f"memory: {one.waits}{kept}", one.fix or reach)
        elif late and not state.trouble:
            text = f"{name} has not confirmed changes of {one.files} memory files since {iso(one.behind_ms)}{kept}"
            yield warning("instances", text, reach)
        elif not state.files and not state.trouble:
            yield ok("instances", f"memory is merged with {name} through {way}")
    for file, why in sorted(state.files.items()):
        yield warning("instances", f"{file} {why}", "start the workers of all instances")
