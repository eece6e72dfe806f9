"""`python -m holdfast_proofs.memory_edits`: how many edits, and what was lost."""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections import Counter
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from holdfast.app.binder import open_journal
from holdfast.core.journal_address import file_at
from holdfast.host.private_files import write_atomically
from holdfast.journal.contract import Remark, RemarkTo
from holdfast.layout.agent_home import MemoryPlace
from holdfast.memory.lines import entry_id, key_of
from holdfast.memory.projection import Written, project_now
from holdfast_proofs.memory_edits.editor import WAYS, line_of
from holdfast_proofs.runner import Proof, Result, at_least_one

EDITS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of the edits of one pair, agent and editor."""

    how: str
    agent_edits: int
    editor_edits: int
    lost_of_agent: int
    lost_of_editor: int
    doubled: int
    rounds: int  # exchanges
    saves_between: int  # of the editor, between our read and our exchange
    put_back: int
    joined: int
    seconds: float

    @property
    def well(self) -> bool:
        return not (self.lost_of_agent or self.lost_of_editor or self.doubled)


async def pair(folder: Path, how: str, *, edits: int, seed: int) -> Outcome:
    """The agent and an editor that saves in this way, half of the edits each, at once."""
    began = time.monotonic()
    place = MemoryPlace(folder=folder)
    write_atomically(place.memory_file, b"# Memory\n\n- a line from before\n")
    journal, _ = await open_journal(file_at(folder / "journal.db"))
    told: list[Written] = []
    editor = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "holdfast_proofs.memory_edits.editor",
        str(place.memory_file),
        how,
        str(edits // 2),
        str(seed),
    )
    try:
        for number in range(edits // 2):
            remark = Remark(
                remark_id=f"{how} {number}", to=RemarkTo.MEMORY, origin="model", text=f"the agent says {number:05}"
            )
            await journal.add_remarks([remark])
            told += await project_now(journal, place, sweep=False)
        if await editor.wait():
            raise SystemExit(f"the editor ({how}) failed")
        told += await project_now(journal, place)
    finally:
        if editor.returncode is None:
            editor.kill()
        await journal.close()
    lines = place.memory_file.read_text().splitlines()
    keys = Counter(key_of(line) for line in lines)
    ours = [keys[entry_id(f"{how} {number}")] for number in range(edits // 2)]
    theirs = [keys[f"={line_of(how, number)}"] for number in range(edits // 2)]
    return Outcome(
        how=how,
        agent_edits=len(ours),
        editor_edits=len(theirs),
        lost_of_agent=ours.count(0),
        lost_of_editor=theirs.count(0) + (keys["=- a line from before"] != 1),
        doubled=sum(count > 1 for count in (*ours, *theirs)),
        rounds=sum(one.rounds for one in told),
        saves_between=sum(max(0, one.rounds - 1) for one in told),
        put_back=sum(one.put_back for one in told),
        joined=sum(one.joined for one in told),
        seconds=round(time.monotonic() - began, 1),
    )


def _run(given: argparse.Namespace) -> Result:
    ways = list(WAYS) if given.how == "all" else [given.how]
    if given.instances > 1:
        return _run_group(given, ways)
    outcomes: list[Outcome] = []
    for how in ways:
        with tempfile.TemporaryDirectory(prefix="holdfast-edits-") as name:
            one = asyncio.run(pair(Path(name), how, edits=given.edits // len(ways), seed=given.seed))
        outcomes.append(one)
        print(
            f"{how:9} {one.agent_edits + one.editor_edits:6} edits: lost {one.lost_of_agent} of the agent's, "
            f"{one.lost_of_editor} of the editor's, doubled {one.doubled}; {one.saves_between} saves came "
            f"between, {one.put_back} lines put back, {one.seconds} s",
            file=sys.stderr,
            flush=True,
        )
    edits = sum(one.agent_edits + one.editor_edits for one in outcomes)
    lost = sum(one.lost_of_agent + one.lost_of_editor for one in outcomes)
    doubled = sum(one.doubled for one in outcomes)
    return Result(
        green=edits > 0 and all(one.well for one in outcomes),
        figures={"outcomes": outcomes},
        summary=f"{edits:,} edits in {len(ways)} ways: {lost} lines lost, {doubled} doubled",
    )


def _run_group(given: argparse.Namespace, ways: list[str]) -> Result:
    from holdfast_proofs.memory_edits.instances import GroupOutcome, group
    from holdfast_proofs.merges.faults import wrong_version

    outcomes: list[GroupOutcome] = []
    for how in ways:
        planted = wrong_version() if given.planted else nullcontext()
        with tempfile.TemporaryDirectory(prefix="holdfast-edits-") as name, planted:
            edits = given.edits // len(ways)
            one = asyncio.run(group(Path(name), how, edits=edits, seed=given.seed, instances=given.instances))
        outcomes.append(one)
        print(f"{how:9} {one}", file=sys.stderr, flush=True)
    edits, lost = sum(one.edits for one in outcomes), sum(one.lost for one in outcomes)
    doubled = sum(one.doubled for one in outcomes)
    return Result(
        green=edits > 0 and all(one.well for one in outcomes),
        figures={"outcomes": outcomes},
        summary=f"{edits:,} edits of {given.instances} instances and 2 editors in {len(ways)} pairs of ways: "
        f"{lost} lines lost, {doubled} doubled",
    )


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--edits", type=at_least_one, default=EDITS, help="in all, over all ways of saving")
    parser.add_argument("--how", choices=[*WAYS, "all"], default="all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--planted", action="store_true", help="with --instances: plant a fault; this must end red")
    parser.add_argument("--instances", type=at_least_one, default=1, help="that share the memory, each on its own host")


PROOF = Proof(
    name="memory_edits",
    purpose="An agent and an editor write one memory file at once: no line may be lost.",
    add_options=_options,
    run=_run,
)
main = PROOF.main

if __name__ == "__main__":
    sys.exit(main())
