"""The demo from beginning to end: play all scenes, then let the far ends' books judge."""

from __future__ import annotations

import time
from pathlib import Path

from holdfast.demo.judge import Doubts, Report, Wanted, judge
from holdfast.demo.lost import lose_machine
from holdfast.demo.scenes import CHARGE, LETTER, MAIL, kill_inside_letter, kill_inside_payment
from holdfast.demo.stage import Teller, journal_in, setting
from holdfast.journal.records import TaskState


async def play(folder: Path, teller: Teller, *, kept: bool) -> Report:
    """Play the story in this folder and judge it. On leaving no process of it is left."""
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
        wanted = (
            Wanted(far_end="payment", task_id=trip.task_id, ordinal=CHARGE),
            Wanted(far_end="mail", task_id=trip.task_id, ordinal=MAIL),
            Wanted(far_end="letter", task_id=letter.task_id, ordinal=LETTER),
        )
        if back.task_id:
            wanted += (
                Wanted(far_end="payment", task_id=back.task_id, ordinal=CHARGE),
                Wanted(far_end="mail", task_id=back.task_id, ordinal=MAIL),
            )
        if stage.worker is not None:
            await stage.worker.stop()
        # Read last: nothing that could still act lives now.
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
