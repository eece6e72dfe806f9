"""The command line: `python -m holdfast_proofs.rewind --cases 200`."""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

import msgspec

from holdfast.core.journal_address import file_at
from holdfast.downstream.ledger import Done
from holdfast.downstream.process import BlockingFarEnd, start_blocking
from holdfast.journal.sqlite.host import disk_trouble
from holdfast.recovery.recover_journal import recover_journal
from holdfast.testing.model_server.process import start_blocking as start_model
from holdfast.testing.model_server.script import Answer, Script, ScriptedCall, ScriptedUsage
from holdfast_proofs.crash.forks import Trial, fork, run_trials
from holdfast_proofs.rewind.cases import Case, Kind, Planned, cases
from holdfast_proofs.rewind.judge import Figures, judge
from holdfast_proofs.rewind.life import COPY, FOUND, JOURNAL, MODEL_URL, PLAN, SUBMITTED, Found, first_life, second_life
from holdfast_proofs.rewind.tools import FAR_ENDS, variable
from holdfast_proofs.runner import Proof, Result, at_least_one
from holdfast_proofs.weakened import Weakness, weaken

LIFE_S_MAX = 90.0
LANES = 3
TOLD = b"was called in its place"
USAGE = ScriptedUsage(input=100, output=10)

FarEnds = Mapping[str, BlockingFarEnd]
Pages = dict[str, list[Done]]


def play(chosen: Sequence[Case], *, weakness: Weakness | None = None) -> Figures:
    """Play the cases, with one rule of the protocol taken out where one is named."""
    disk_trouble.RESERVE_BYTES = disk_trouble.RESERVE_BYTES_MIN
    began = time.monotonic()
    figures = Figures()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="holdfast-rewind-")))
        far = {name: stack.enter_context(start_blocking(kind, **choices)) for name, (kind, choices) in FAR_ENDS.items()}
        os.environ.update({variable(name): one.url for name, one in far.items()})
        trials = (_trial(case, folder / case.name, far, weakness, figures) for case in chosen)
        for _ in run_trials(trials, lanes=LANES):
            pass
    figures.seconds = round(time.monotonic() - began, 1)
    return figures


def _trial(case: Case, folder: Path, far: FarEnds, weakness: Weakness | None, figures: Figures) -> Trial[None]:
    folder.mkdir(mode=0o700)
    with ExitStack() as stack:
        first_url = stack.enter_context(start_model(_script(case.first))).url if _talks(case) else ""
        first = fork(lambda: first_life(case, folder), before=lambda: _set(case.first, first_url), life_s=LIFE_S_MAX)
        yield first.ended
        if not (folder / COPY).exists():
            figures.findings.append(f"{case.name}: the first life made no copy ({first.code})")
            return
        before = _books(far, (folder / SUBMITTED).read_text())
        home = _lose(case, folder)
        asyncio.run(recover_journal(file_at(home / JOURNAL)))
        model = stack.enter_context(start_model(_script(case.second))) if _talks(case) else None
        url = model.url if model else ""

        def begin() -> None:
            weaken(weakness)
            _set(case.second, url)

        second = fork(lambda: second_life(case, home), before=begin, life_s=LIFE_S_MAX)
        yield second.ended
        if second.code != 0 or not (home / FOUND).exists():
            figures.findings.append(f"{case.name}: the second life ended with {second.code}")
            return
        found = msgspec.json.decode((home / FOUND).read_bytes(), type=Found)
        heard = True
        if model is not None:
            heard = any(TOLD in one.body for one in asyncio.run(model.requests()))
        after = _books(far, found.task_id)
        judge(figures, case, found, before, after, heard=heard)
    shutil.rmtree(folder)
    shutil.rmtree(home, ignore_errors=True)


def _lose(case: Case, folder: Path) -> Path:
    """The machine is lost: what is left is the copy, the keys, and perhaps its instance folder."""
    home = folder.with_name(f"{folder.name}-again")
    home.mkdir(mode=0o700)
    shutil.copy2(folder / COPY, home / JOURNAL)
    shutil.copy2(folder / "keys.json", home / "keys.json")
    if case.same_machine:
        shutil.copytree(folder / "instance", home / "instance")
    return home


def _books(far: FarEnds, task_id: str) -> Pages:
    return {name: [one for one in end.ledger().effects if one.task == task_id] for name, end in far.items()}


def _set(turns: Sequence[Sequence[Planned]], url: str) -> None:
    os.environ[PLAN] = msgspec.json.encode([call for turn in turns for call in turn]).decode()
    os.environ[MODEL_URL] = url


def _talks(case: Case) -> bool:
    return case.kind is Kind.AGENT


def _script(turns: Sequence[Sequence[Planned]]) -> Script:
    answers = [
        Answer(
            turn=number,
            usage=USAGE,
            tool_calls=tuple(ScriptedCall(tool=one.tool, arguments={"number": one.number}) for one in turn),
        )
        for number, turn in enumerate(turns, start=1)
    ]
    return Script(answers=(*answers, Answer(text="Done.", usage=USAGE)))


def _run(given: argparse.Namespace) -> Result:
    chosen = cases(given.seed, given.cases)
    if given.only is not None:
        chosen = chosen[given.only : given.only + 1]
    figures = play(chosen)
    return Result(
        green=figures.green,
        figures=figures,
        findings=figures.findings,
        again=f"--seed {given.seed} --only NUMBER",
        summary=f"{figures.cases} restores, {figures.copies} of "
        f"them with effects that the copy does not know ({figures.lost}): {figures.adopted} "
        f"adopted, {figures.told_other} of them reported as done with other arguments, "
        f"{figures.unreached} behind a parked step or written again; {figures.duplicates} "
        f"duplicates, {figures.untold} not reported, {figures.shared} answering two calls, "
        f"{figures.sent_unasked} sent unasked, {figures.parked} parked {figures.parked_by_tool}, "
        f"{figures.wrong_state} in a wrong state, {figures.seconds:.0f} s",
    )


def _options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--cases", type=at_least_one, default=200, metavar="N", help="how many (200)")
    add("--seed", type=int, default=1, help="of the cases (1)")
    add("--only", type=int, metavar="NUMBER", help="one case alone, as a finding names it")


PROOF = Proof(
    name="rewind",
    purpose="Restore an older copy of the journal after effects were made, plan otherwise, and count at the far ends.",
    add_options=_options,
    run=_run,
)
main = PROOF.main

if __name__ == "__main__":
    sys.exit(main())
