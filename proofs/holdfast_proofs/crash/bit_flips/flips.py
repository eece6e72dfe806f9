"""Bit flips: one bit of a journal's folder is turned over, and then it is opened, read and run.

Each flip is *found* (an error of ours that names the place, or a line of `doctor --deep`), or
*harmless*: everything reads back as before and the work ends as it would have. Anything else is
red: another answer that nobody mentions (silent), an effect that should not have been (a
duplicate), an exception that is not ours, or a program that hangs (breaches).

A third of the flips are drawn evenly over all bytes, a third over the kinds of bytes, a third over
the cells of the tables: a journal is mostly payload, and its rarest bytes decide the most. The
journal is flipped in two forms: with its log as a dead program leaves it, whose every frame SQLite
itself checks, and with the log moved into the file, which has no checksums but ours. A flip is
tried on two copies, each by a program of its own: one that examines the journal, and one that
opens it and works.
"""

from __future__ import annotations

import random
import shutil
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from holdfast.app.doctor import Level, examine
from holdfast.core.journal_address import file_at
from holdfast_proofs.crash.bit_flips import furnished
from holdfast_proofs.crash.bit_flips.flip_places import Place, places
from holdfast_proofs.crash.bit_flips.furnished import JOURNAL, SETTINGS, FarEnd, effects
from holdfast_proofs.crash.bit_flips.reading import Answers, read_and_run
from holdfast_proofs.crash.forks import Child, Trial, Work, fork, run_trials
from holdfast_proofs.crash.report import Figures

HANG_S = 10.0  # a healthy journal takes a tenth of a second
OUTCOME = "outcome.json"
TABLES = frozenset(("task", "record", "inbox", "session", "notice", "meta", "sqlite_schema"))


class Flip(msgspec.Struct, frozen=True, kw_only=True, order=True):
    """One bit, by the file below the journal's folder, the byte's offset and the bit's number."""

    file: str
    offset: int
    bit: int

    def __str__(self) -> str:
        return f"{self.file}:{self.offset}:{self.bit}"

    @classmethod
    def parse(cls, text: str) -> Flip:
        file, offset, bit = text.rsplit(":", 2)
        flip = cls(file=file, offset=int(offset), bit=int(bit))
        if not 0 <= flip.bit < 8 or flip.offset < 0:
            raise ValueError(f"{text}: no such bit")
        return flip


@dataclass(frozen=True, slots=True, kw_only=True)
class FlipPlan:
    folder: Path
    count: int
    seed: int
    only: Flip | None = None
    logged: bool = True  # with its log, or with the log moved into the file
    origin: Path | None = None  # a journal that was kept, to flip it again
    keep: Path | None = None  # where the journal is kept if anything is red
    lanes: int = 4


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """What one program saw: what it found wrong, or what it read."""

    found: str = ""
    answers: Answers | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Flipped:
    flip: Flip | None  # None: nothing was turned over
    kind: str
    examined: Seen | str  # or how the program ended, where it did not end well
    worked: Seen | str
    done: Counter[str]

    @property
    def found(self) -> str:
        seen = [one for one in (self.worked, self.examined) if isinstance(one, Seen)]
        return next((one.found for one in seen if one.found), "")


def run_flips(plan: FlipPlan) -> Figures:
    """Make the journal, flip, judge."""
    origin, book = _take(plan.origin, plan.folder) if plan.origin else make_origin(plan.folder, logged=plan.logged)
    kinds = places(origin)
    flips = [(plan.only, "asked for")] if plan.only else _draw(plan, origin, kinds)
    (plain,) = run_trials(iter((_trial(plan, origin, book, None, ""),)), lanes=1)
    if not isinstance(plain.worked, Seen) or plain.worked.answers is None or plain.found:
        raise RuntimeError(f"the journal is damaged before any flip: {plain}")
    figures = Figures(name="flips", steps=0)
    seen: set[Flip] = set()
    trials = (_trial(plan, origin, book, flip, kind) for flip, kind in flips)
    for flipped in run_trials(trials, lanes=plan.lanes):
        if flipped.flip is not None:
            seen.add(flipped.flip)
        _judge(figures, flipped, plain, keep=plan.origin or plan.keep)
    figures.distinct = len(seen)
    if plan.keep is not None and figures.findings:
        shutil.rmtree(plan.keep, ignore_errors=True)
        shutil.copytree(origin, plan.keep / "origin")
        shutil.copy(book, plan.keep / "book")
    return figures


def _take(kept: Path, folder: Path) -> tuple[Path, Path]:
    """A copy, because reading a journal leaves traces in its folder."""
    shutil.copytree(kept, folder / "kept")
    return folder / "kept" / "origin", folder / "kept" / "book"


def make_origin(folder: Path, *, logged: bool) -> tuple[Path, Path]:
    """The journal to be copied, and the far end's book of what was done until then."""
    origin, book = folder / "origin", folder / "book"
    origin.mkdir(mode=0o700)
    FarEnd.book = book
    died = -signal.SIGKILL
    programs: list[tuple[Work, int]] = [
        (lambda: furnished.furnish(origin), 0),
        (lambda: furnished.die_unrepeatably(origin, "one"), died),
        (lambda: furnished.die_unrepeatably(origin, "two"), died),
        (lambda: furnished.resume_and_die(origin), died),
        (lambda: furnished.leave_facts(origin, dies=logged), died if logged else 0),
    ]

    def make() -> Trial[None]:
        for work, expected in programs:
            child = fork(work)
            yield child.ended
            if child.code != expected:
                raise RuntimeError(f"a program ended with {child.code}, not {expected}")

    list(run_trials(iter((make(),)), lanes=1))
    return origin, book


def _draw(plan: FlipPlan, origin: Path, kinds: dict[str, list[Place]]) -> Iterator[tuple[Flip, str]]:
    """One for every kind of byte, then by turns: over all bytes, the kinds, the tables' cells."""
    chance = random.Random(plan.seed)
    every = [(kind, place) for kind, found in kinds.items() for place in found]
    weights = [place.length for _, place in every]
    names = list(kinds)
    tables = [name for name in names if name.removesuffix(" cells") in TABLES]
    for number in range(plan.count):
        if number < len(names) or number % 3:
            drawn = chance.choice(names if number % 3 == 1 else tables)
            kind = names[number] if number < len(names) else drawn
            place = chance.choices(kinds[kind], [one.length for one in kinds[kind]])[0]
        else:
            kind, place = chance.choices(every, weights)[0]
        offset = place.offset + chance.randrange(place.length)
        yield Flip(file=place.file, offset=offset, bit=chance.randrange(8)), kind


def _trial(plan: FlipPlan, origin: Path, book: Path, flip: Flip | None, kind: str) -> Trial[Flipped]:
    folder = plan.folder / f"flip-{str(flip).replace('/', '_')}"
    if folder.exists():  # drawn twice
        folder = folder.with_name(f"{folder.name}-again")
    folder.mkdir(mode=0o700)
    examining = _start(folder / "examined", origin, book, flip, _examine)
    working = _start(folder / "worked", origin, book, flip, _work)
    yield lambda: examining.ended() and working.ended()
    flipped = Flipped(
        flip=flip,
        kind=kind,
        examined=_seen(examining, folder / "examined"),
        worked=_seen(working, folder / "worked"),
        done=effects(folder / "worked" / "book"),
    )
    shutil.rmtree(folder)
    return flipped


def _start(folder: Path, origin: Path, book: Path, flip: Flip | None, act: Callable[[Path], Work]) -> Child:
    folder.mkdir(mode=0o700)
    copy = folder / "agent"
    shutil.copytree(origin, copy)
    shutil.copy(book, folder / "book")
    if flip is not None:
        _turn(copy / flip.file, flip)

    def begin() -> None:
        FarEnd.book = folder / "book"

    return fork(act(folder), before=begin, life_s=HANG_S)


def _turn(path: Path, flip: Flip) -> None:
    with open(path, "r+b") as file:
        file.seek(flip.offset)
        (byte,) = file.read(1)
        file.seek(flip.offset)
        file.write(bytes((byte ^ 1 << flip.bit,)))


def _examine(folder: Path) -> Work:
    async def examine_it() -> None:
        wrong: list[str] = []
        async for finding in examine(file_at(folder / "agent" / JOURNAL), settings=SETTINGS, deep=True):
            if finding.level is Level.DAMAGE:
                wrong.append(f"{finding.check}: {finding.text}")
        _say(folder, Seen(found=wrong[0] if wrong else ""))

    return examine_it


def _work(folder: Path) -> Work:
    async def work() -> None:
        answers, found = await read_and_run(folder / "agent" / JOURNAL)
        _say(folder, Seen(found=found, answers=answers))

    return work


def _say(folder: Path, seen: Seen) -> None:
    (folder / OUTCOME).write_bytes(msgspec.json.encode(seen))


def _seen(child: Child, folder: Path) -> Seen | str:
    if child.overdue:
        return "it hung"
    if child.code != 0:
        return f"it ended with {child.code}: see its error output"
    return msgspec.json.decode((folder / OUTCOME).read_bytes(), type=Seen)


def _judge(figures: Figures, flipped: Flipped, plain: Flipped, *, keep: Path | None) -> None:
    """Found, harmless, or red."""
    figures.points += 1
    wrong = list(_wrong(flipped, plain))
    for counter, finding in wrong:
        setattr(figures, counter, getattr(figures, counter) + 1)
        again = f"--origin {keep} --flip {flipped.flip}"
        figures.note(f"{flipped.flip} ({flipped.kind}): {finding}", again=again)
    if flipped.found:
        figures.found += 1
    elif not wrong:
        figures.harmless += 1
    figures.kinds[flipped.kind] = figures.kinds.get(flipped.kind, 0) + 1


def _wrong(flipped: Flipped, plain: Flipped) -> Iterator[tuple[str, str]]:
    for name, seen in (("examining", flipped.examined), ("working", flipped.worked)):
        if isinstance(seen, str):
            yield "breaches", f"{name}: {seen}"
    extra = flipped.done - plain.done
    again = [what for what in extra if not (what.startswith("keyed ") and plain.done[what])]
    if again:
        yield "duplicates", f"done although it should not have been: {again}"
    if flipped.found or not isinstance(flipped.worked, Seen):
        return
    assert isinstance(plain.worked, Seen)
    for difference in _differences(flipped.worked.answers, plain.worked.answers):
        yield "silent", difference


def _differences(got: Answers | None, wanted: Answers | None) -> Sequence[str]:
    if got is None or wanted is None:
        return ["nothing was read, and nothing was found"]
    names = sorted(got.facts.keys() | wanted.facts.keys())
    return [
        f"{name}: {got.facts.get(name)!r}, not {wanted.facts.get(name)!r}"[:400]
        for name in names
        if got.facts.get(name) != wanted.facts.get(name)
    ][:3]
