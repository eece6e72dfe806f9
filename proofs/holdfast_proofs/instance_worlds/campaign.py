"""Many worlds, also in processes of their own, which cannot import what is in `__main__`; and the planted faults."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from holdfast.app.instances import merge_job, standing
from holdfast.app.instances.standing import StandingKind
from holdfast.identity.files.roster_file import join_roster
from holdfast.layout.agent_home import AgentHome
from holdfast_proofs.instance_worlds.world import drop_template, find_breach
from holdfast_proofs.merges.faults import patched

SELF_TEST_WORLDS = 200


def breaches_of(seeds: range) -> list[tuple[int, str]]:
    try:
        return [(seed, why) for seed in seeds if (why := find_breach(seed))]
    finally:
        drop_template()


# --- planted faults -------------------------------------------------------------------------------


def _acting(*kinds: StandingKind) -> Callable[[], AbstractContextManager[None]]:
    allowed = (StandingKind.ALONE, StandingKind.PRIMARY, *kinds)
    return lambda: patched(standing.Standing, "may_act", property(lambda self: self.kind in allowed))


def _own_file_only(folder: Path, told: object, log: Any, port: Any) -> Any:  # Any: handed through unread
    return join_roster(folder, (), log, port)


def _used_by_none(*_: object) -> str:
    return ""


def _as_opened(home: AgentHome) -> tuple[object, ...]:
    return ("the roster never changes",)


FAULTS: dict[str, Callable[[], AbstractContextManager[None]]] = {
    "role-ignored": _acting(StandingKind.STANDBY),
    "claim-by-waiting": _acting(StandingKind.COPY),
    "key-used-twice": lambda: patched(standing, "note_host", _used_by_none),
    "roster-of-others-unheard": lambda: patched(standing, "join_roster", _own_file_only),
    "merges-with-the-removed": lambda: patched(merge_job, "_signature", _as_opened),
}


def find_first(fault: str) -> tuple[int, str] | None:
    with FAULTS[fault]():
        try:
            return next(((seed, why) for seed in range(SELF_TEST_WORLDS) if (why := find_breach(seed))), None)
        finally:
            drop_template()
