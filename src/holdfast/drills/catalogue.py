"""Every drill: what it breaks, what it promises by default, and when it does not apply."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from holdfast.drills.host_loss import host_loss
from holdfast.drills.production import Production
from holdfast.drills.run import DrillRun
from holdfast.errors import BadInput

MONTH_DAYS, QUARTER_DAYS, WEEK_DAYS = 30, 90, 7


@dataclass(frozen=True, slots=True, kw_only=True)
class Drill:
    slug: str
    code: str
    title: str
    narrative: str
    threat: str
    likelihood: Literal["rare", "occasional", "frequent"]
    interval_days: int
    run: Callable[[DrillRun], None]
    type: Literal["component", "functional", "full failover"] = "functional"
    rto_s: float | None = None
    rpo_s: float | None = None  # None: as the agent's own target says
    rpo_items: int | None = None
    parked_max: int | None = None
    words: bool = False  # needs a person's words
    find_reason: Callable[[Production], str] = lambda _production: ""  # why it does not apply


def no_places(production: Production) -> str:
    return "" if production.places else "the agent has no backup place"


def fewer_than_two_places(production: Production) -> str:
    return "" if len(production.places) > 1 else "the agent has no second backup place"


DRILLS: tuple[Drill, ...] = (
    Drill(
        slug="host-loss",
        code="D02",
        title="The machine is lost",
        narrative="The machine dies in the middle of a step. On another one, with nothing of the agent left, it is "
        "restored from its recovery sheet and one backup place.",
        threat="fire, theft, a broken disk, a deleted virtual machine",
        likelihood="occasional",
        interval_days=WEEK_DAYS,
        run=host_loss,
        type="full failover",
        rto_s=300.0,
        words=True,
        find_reason=no_places,
    ),
)
SETS: dict[str, tuple[str, ...]] = {"quarterly": ("host-loss",)}


def get_drill(name: str) -> Drill:
    """By its slug or code. Raises BadInput."""
    for one in DRILLS:
        if name.lower() in (one.slug, one.code.lower()):
            return one
    known = ", ".join(f"{one.slug} ({one.code})" for one in DRILLS)
    raise BadInput(f"there is no drill {name!r}", hint=f"the drills are: {known}")
