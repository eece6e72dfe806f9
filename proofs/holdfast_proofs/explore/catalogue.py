"""All configurations, and the small set that every change must pass.

Small are the configurations of a few thousand states; together they take seconds and still hold
each class, a restore, a gather, a cancel, a person, and nearly every weakening.
"""

from __future__ import annotations

from holdfast_proofs.explore.holding import HOLDING
from holdfast_proofs.explore.setup import Configuration
from holdfast_proofs.explore.weakened import SURVIVORS, WEAKENED

CONFIGURATIONS: tuple[Configuration, ...] = (*HOLDING, *WEAKENED, *SURVIVORS)

_SMALL_HOLDING = frozenset(
    (
        "K",
        "Q",
        "N",
        "N, person",
        "T",
        "T then K then T",
        "Q refused, retried",
        "N cancelled, pages",
        "gather Q and N, then K",
        "Q, webhook",
        "K 2 attempts, person",
        "Q restore, one step",
    )
)
_LARGE_WEAKENED = frozenset(
    (
        "retry slots where refusals are not stored, restore",
        "only the first slot asks about later ones",
        "F not suspect after a restore",
        "an answer of the lost timeline counts",
        "a run rests on what it has not seen",
        "a suspect slot sent where bodies are not compared",
        "retry slots not asked after a restore",
    )
)

SMALL: tuple[Configuration, ...] = tuple(
    one
    for one in CONFIGURATIONS
    if (one.kind == "holds" and one.name in _SMALL_HOLDING)
    or (one.kind == "caught" and one.name not in _LARGE_WEAKENED)
)


def find(name: str) -> list[Configuration]:
    """The configuration of this name, or all whose names contain it."""
    exact = [one for one in CONFIGURATIONS if one.name == name]
    return exact or [one for one in CONFIGURATIONS if name.lower() in one.name.lower()]
