"""What a journal says about the task in the end: states, and the records as they lie in the file or the database.

The records are read with plain SQL beside the journal's own reader, so that a reader that looks
away is noticed too.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from holdfast.app.handle import TaskHandle
from holdfast.core.effect import Letter
from holdfast.errors import HoldfastError
from holdfast_proofs.crash.places import look_beside
from holdfast_proofs.crash.subjects import TABLE
from holdfast_proofs.history.story import Told


class StepFound(msgspec.Struct, frozen=True, kw_only=True):
    state: str
    letter: Letter
    attempts: int
    question: str
    evidence: int


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """The task as the last process found it."""

    task_id: str = ""
    state: str = ""
    question: str = ""
    steps: dict[str, StepFound] = {}
    records: tuple[Told, ...] = ()
    owners: dict[int, str] = {}  # epoch to the pid that claimed it
    rows: dict[str, int] = {}  # Transactional: effects by step
    damage: str = ""  # why the journal cannot read its own records
    error: str = ""  # why it could not be found


async def look(handle: TaskHandle, folder: Path, url: str) -> Found:
    """Read everything the judge needs, through the journal and beside it."""
    row = await handle.row()
    records, rows = look_beside(folder, url, handle.id, TABLE)
    found = Found(task_id=handle.id, state=row.state.value, records=records, rows=rows)
    try:
        view = await handle.view()
    except HoldfastError as error:
        return msgspec.structs.replace(found, damage=f"{error.code}: {error.message}")
    return msgspec.structs.replace(
        found,
        question=view.rest.question,
        steps={
            ordinal: StepFound(
                state=step.state.value,
                letter=step.letter,
                attempts=len(step.attempts),
                question=step.question,
                evidence=len(step.evidence),
            )
            for ordinal, step in view.steps.items()
        },
        owners={epoch: claim.worker for epoch, claim in view.claims.items()},
    )
