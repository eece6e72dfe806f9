"""What a journal says about the task in the end: states, and the records as they lie in the file.

The records are read with plain SQL beside the journal's own reader, so that a reader that looks
away is noticed too.
"""

from __future__ import annotations

from pathlib import Path

import apsw
import msgspec

from holdfast.app.handle import TaskHandle
from holdfast.core.effect import Letter
from holdfast.core.ids import TaskId
from holdfast.errors import HoldfastError
from holdfast.host.sqlite import Db, open_db
from holdfast_proofs.crash.subjects import TABLE
from holdfast_proofs.history.reading import read_records
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


async def look(handle: TaskHandle, journal: Path) -> Found:
    """Read everything the judge needs, through the journal and beside it."""
    row = await handle.row()
    db = open_db(str(journal), flags=apsw.SQLITE_OPEN_READWRITE)
    try:
        found = Found(
            task_id=handle.id, state=row.state.value, records=read_records(db, handle.id), rows=_effects(db, handle.id)
        )
    finally:
        db.close()
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


def _effects(db: Db, task_id: TaskId) -> dict[str, int]:
    made = db.execute("SELECT 1 FROM sqlite_master WHERE name = ?", (TABLE,)).fetchone()
    if made is None:
        return {}
    rows = db.execute(f"SELECT step, count(*) FROM {TABLE} WHERE task = ? GROUP BY step", (task_id,)).fetchall()
    return dict(rows)
