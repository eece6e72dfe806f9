"""What a worker that serves many agents says about itself: health.py's pages, with the agent as a label.

`/healthz` answers 200 while at least one agent is served: whatever restarts a worker that answers 503 would stop all
agents because of one. `holdfast_up` of each agent is there to be watched.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from holdfast.app.health import Figures, Gauges, Health, build_info, render
from holdfast.host.version import find_version

if TYPE_CHECKING:
    from holdfast.app.fleet import Member


class FleetGauges:
    def __init__(self, members: Sequence[Member]) -> None:
        self._members = members

    def health(self) -> Health:
        failing = {one.home: why for one in self._members if (why := _why_down(one))}
        serving = len(self._members) - len(failing)
        facts: dict[str, object] = {
            "agents": len(self._members),
            "serving": serving,
            "failing": failing,
            "running": sum(one.engine.active for one in self._members if one.engine is not None),
            "version": find_version(),
        }
        return Health([] if serving else ["this worker serves no agent"], facts)

    async def metrics(self) -> str:
        merged: Figures = {}
        for member, figures in zip(self._members, await asyncio.gather(*map(_figures, self._members)), strict=True):
            for name, lines in figures.items():
                merged.setdefault(name, []).extend(({"agent": member.home, **labels}, value) for labels, value in lines)
        return render({**build_info(), **merged})


def _why_down(member: Member) -> str:
    """Why the agent is not served now; empty where it is."""
    if member.engine is not None and member.journal is not None:
        return "; ".join(Gauges(engine=member.engine, journal=member.journal).health().reasons)
    if member.left_out is not None:
        return f"left out: {member.trouble}"
    return member.trouble or "it is being opened"


async def _figures(member: Member) -> Figures:
    if member.engine is None or member.journal is None:
        return {"up": [({}, 0.0)]}
    return await Gauges(engine=member.engine, journal=member.journal).figures()
