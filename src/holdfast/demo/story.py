"""The whole demo: play all scenes, then judge: compare what the far ends did with what was asked.

How often an effect happened is read only from the far ends' own ledgers. The journal is asked only what it showed to a
person. `judge` itself does no I/O.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections import Counter
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from holdfast.demo.correspondence import PAID
from holdfast.demo.instances import lose_instance
from holdfast.demo.machine import lose_machine
from holdfast.demo.measured import LostMachine
from holdfast.demo.region import cut_off_host
from holdfast.demo.relays import lose_relay
from holdfast.demo.scenes import CHARGE, LETTER, MAIL, kill_inside_letter, kill_inside_payment
from holdfast.demo.stage import Teller, journal_in, setting
from holdfast.downstream.ledger import Page
from holdfast.errors import BadInput
from holdfast.journal.records import TaskState


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """One effect that was asked for, and so must exist once."""

    far_end: str
    task_id: str
    ordinal: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Doubts:
    """What the journal showed of steps in doubt."""

    trip_parked: int  # keyed and queryable steps never need a person
    letter_parked: int  # the killed, unrepeatable one always does
    settled: int
    open: int  # parked still when the demo ended


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    charges: int
    mails: int
    letters: int
    duplicates: int
    lost: int
    strays: int  # effects that no step asked for
    broken: tuple[str, ...]  # broken promises, in words

    @property
    def held(self) -> bool:
        return not self.broken


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The demo's figures. `seconds` is the whole demo, `resume_s` from kill to the next step."""

    verdict: Verdict
    parked: int
    asked: int
    settled: int
    kills: int
    takeover_s: float
    resume_s: float
    identity_same: bool | None  # None where the scene was left out
    memory_kept: bool | None
    restore_s: float | None
    region_resume_s: float | None  # from the cut of the first host to the next step on the second
    mail_lost: int | None  # these three: None where the scene was left out
    mail_twice: int | None
    relays_lost: int | None
    instance_takeover_s: float | None  # from the kill of an instance to the first step of the other in its task
    memory_merged: bool | None  # the other has what a person wrote on the first; None: left out, or nothing merges
    report: LostMachine | None  # the drill report of the lost machine
    left_out: dict[str, str]  # scenes that were skipped, by their number, and why
    seconds: float
    journal: str | None

    def to_json(self) -> dict[str, object]:
        figures = asdict(self)
        verdict, report = figures.pop("verdict"), figures.pop("report")
        measured = {name: None if report is None else report[name] for name in ("level", "rto_s", "rpo_items")}
        drill = None if report is None else {name: report[name] for name in ("verdict", "reason", "path")}
        if drill is not None and self.journal is None:
            drill["path"] = None  # nothing is kept
        return {"held": self.verdict.held, **verdict, **figures, **measured, "drill": drill}


Back = tuple[bool | None, bool | None, bool | None]  # see `judge`; None where the scene was left out


def judge(
    wanted: Iterable[Wanted], ledgers: Mapping[str, Page], doubts: Doubts, *, back: Back = (None, None, None)
) -> Verdict:
    """Count at the far ends; name every promise that did not hold.
    `back` says whether an agent that came back is the same, whether it remembers, and whether a host that came back
    wrote to a task that another one had taken."""
    counts = Counter(
        (far_end, effect.task, effect.base) for far_end, page in ledgers.items() for effect in page.effects
    )
    asked = {(one.far_end, one.task_id, one.ordinal) for one in wanted}
    duplicates = sum(counts[one] - 1 for one in asked if counts[one] > 1)
    lost = sum(1 for one in asked if not counts[one])
    strays = sum(count for one, count in counts.items() if one not in asked)
    return Verdict(
        charges=ledgers["payment"].count,
        mails=ledgers["mail"].count,
        letters=ledgers["letter"].count,
        duplicates=duplicates,
        lost=lost,
        strays=strays,
        broken=(*_broken(duplicates, lost, strays, doubts), *_changed(*back)),
    )


def _broken(duplicates: int, lost: int, strays: int, doubts: Doubts) -> Iterable[str]:
    if duplicates:
        yield f"nothing twice: {duplicates} effects happened again"
    if lost:
        yield f"nothing lost: {lost} effects never happened"
    if strays:
        yield f"nothing else: {strays} effects belong to no step"
    if doubts.trip_parked:
        yield f"no needless question: {doubts.trip_parked} steps of the trip were parked"
    if doubts.letter_parked != 1:
        yield "no silent doubt: no person was asked about the letter's unknown outcome"
    if doubts.open or doubts.settled != doubts.letter_parked:
        yield f"a decision settles: {doubts.open} steps are still parked"


def _misdelivered(lost: int, twice: int) -> Iterable[str]:
    if lost:
        yield f"reachable: {lost} messages got no answer"
    if twice:
        yield f"reachable: {twice} messages were handled or answered twice"


def _changed(identity_same: bool | None, memory_kept: bool | None, old_host_wrote: bool | None) -> Iterable[str]:
    if identity_same is False:
        yield "the same agent: the restored agent does not answer under its id"
    if memory_kept is False:
        yield "the same memory: what it remembered is missing"
    if old_host_wrote:
        yield "one owner: the host that was cut off wrote to a task that it had lost"


async def play(folder: Path, teller: Teller, *, kept: bool) -> Report:
    """Play the story in this folder and judge it. No process is left at the end."""
    began = time.monotonic()
    async with setting(folder, teller) as stage:
        trip = await kill_inside_payment(stage)
        letter = await kill_inside_letter(stage)
        back = await lose_machine(stage)
        region = await cut_off_host(stage)
        mail = await lose_relay(stage)
        taken = await lose_instance(stage)
        tasks = await stage.hf.journal.count_tasks()
        doubts = Doubts(
            trip_parked=trip.parked + back.parked + region.parked + taken.parked,
            letter_parked=letter.parked,
            settled=letter.settled,
            open=tasks.get(TaskState.PARKED, 0),
        )
        wanted = [Wanted(far_end="letter", task_id=letter.task_id, ordinal=LETTER)]
        for task_id in filter(None, (trip.task_id, back.task_id, region.task_id, taken.task_id)):
            wanted.append(Wanted(far_end="payment", task_id=task_id, ordinal=CHARGE))
            wanted.append(Wanted(far_end="mail", task_id=task_id, ordinal=MAIL))
        wanted += [Wanted(far_end="payment", task_id=one, ordinal=PAID) for one in mail.task_ids]
        if stage.worker is not None:
            await stage.worker.stop()
        # Read last: nothing runs any more that could act.
        ledgers = {name: await far_end.ledger() for name, far_end in stage.far_ends.items()}
    verdict = judge(wanted, ledgers, doubts, back=(back.identity_same, back.memory_kept, region.old_host_wrote))
    unread = tuple(_misdelivered(mail.mail_lost or 0, mail.mail_twice or 0))
    if taken.memory_merged is False:
        unread += ("one memory: what was written on one host is missing on the other",)
    verdict = replace(verdict, broken=(*verdict.broken, *unread))
    if back.report is not None and back.report.verdict == "fail":
        verdict = replace(verdict, broken=(*verdict.broken, f"proven: the drill failed: {back.report.reason}"))
    return Report(
        verdict=verdict,
        parked=doubts.open,
        asked=doubts.trip_parked + doubts.letter_parked,
        settled=doubts.settled,
        kills=stage.kills,
        takeover_s=trip.takeover_s,
        resume_s=trip.resume_s,
        identity_same=back.identity_same,
        memory_kept=back.memory_kept,
        restore_s=back.restore_s,
        region_resume_s=region.resume_s,
        mail_lost=mail.mail_lost,
        mail_twice=mail.mail_twice,
        relays_lost=mail.relays_lost,
        instance_takeover_s=taken.takeover_s,
        memory_merged=taken.memory_merged,
        report=back.report,
        left_out={str(number): one.missing for number, one in enumerate((back, region, mail, taken), 3) if one.missing},
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
