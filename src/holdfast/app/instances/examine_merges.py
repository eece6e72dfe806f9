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
    if not state.peers:
        yield warning("instances", "this instance has not merged its memory yet", "start a worker in this folder")
    for name, one in sorted(state.peers.items()):
        late = bool(one.behind_ms) and now_ms - one.behind_ms >= LAG_MS
        kept = f"; the history of these files is kept for it until {iso(one.kept_until_ms)}" if late else ""
        gone = f"if that instance is lost for good: `holdfast instance remove {name}`"
        if one.waits:
            yield warning(
                "instances", f"memory: {one.waits}{kept}", f"look at the worker of {name}, and at {way}; {gone}"
            )
        elif late:
            text = f"{name} has not confirmed changes of {one.files} memory files since {iso(one.behind_ms)}{kept}"
            yield warning("instances", text, f"start the worker of {name}, or see that {way} reaches its host; {gone}")
        else:
            yield ok("instances", f"memory is merged with {name} through {way}")
    for file, why in sorted(state.files.items()):
        yield warning("instances", f"{file} {why}", "start the workers of all instances")
