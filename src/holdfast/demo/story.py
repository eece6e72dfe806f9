"""The whole demo: play all scenes, then judge by the far ends' ledgers."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from holdfast.demo.judge import Doubts, Report, Wanted, judge
from holdfast.demo.machine import lose_machine
from holdfast.demo.scenes import CHARGE, LETTER, MAIL, kill_inside_letter, kill_inside_payment
from holdfast.demo.stage import Teller, journal_in, setting
from holdfast.errors import BadInput
from holdfast.journal.records import TaskState


async def play(folder: Path, teller: Teller, *, kept: bool) -> Report:
    """Play the story in this folder and judge it. No process is left at the end."""
    began = time.monotonic()
    async with setting(folder, teller) as stage:
        trip = await kill_inside_payment(stage)
        letter = await kill_inside_letter(stage)
        back = await lose_machine(stage)
        tasks = await stage.hf.journal.count_tasks()
        doubts = Doubts(
            trip_parked=trip.parked + back.parked,
            letter_parked=letter.parked,
            settled=letter.settled,
            open=tasks.get(TaskState.PARKED, 0),
        )
        wanted = [Wanted(far_end="letter", task_id=letter.task_id, ordinal=LETTER)]
        for task_id in filter(None, (trip.task_id, back.task_id)):
            wanted.append(Wanted(far_end="payment", task_id=task_id, ordinal=CHARGE))
            wanted.append(Wanted(far_end="mail", task_id=task_id, ordinal=MAIL))
        if stage.worker is not None:
            await stage.worker.stop()
        # Read last: nothing runs any more that could act.
        ledgers = {name: await far_end.ledger() for name, far_end in stage.far_ends.items()}
    return Report(
        verdict=judge(wanted, ledgers, doubts, back=(back.identity_same, back.memory_kept)),
        parked=doubts.open,
        asked=doubts.trip_parked + doubts.letter_parked,
        settled=doubts.settled,
        kills=stage.kills,
        takeover_s=trip.takeover_s,
        resume_s=trip.resume_s,
        identity_same=back.identity_same,
        memory_kept=back.memory_kept,
        restore_s=back.restore_s,
        left_out=back.missing,
        seconds=round(time.monotonic() - began, 3),
        journal=str(journal_in(folder)) if kept else None,
    )


@contextmanager
def playing(asked: str | None, *, kept: bool) -> Generator[Path]:
    """A folder for the journal and the ledgers, 0700."""
    if asked is not None:
        yield _new_folder(Path(os.path.abspath(asked)))
    elif kept:
        yield Path(tempfile.mkdtemp(prefix="holdfast-demo-"))
    else:
        with tempfile.TemporaryDirectory(prefix="holdfast-demo-") as name:
            yield Path(name)


def _new_folder(folder: Path) -> Path:
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise BadInput(f"{folder} is not empty", hint="name a new or an empty folder")
    except OSError as error:
        raise BadInput(f"{folder} cannot be used: {error.strerror}") from error
    return folder
