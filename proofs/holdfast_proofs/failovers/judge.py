"""What the writers were told against what the journal holds.

* lost: acknowledged, and not in the journal of the server that was promoted;
* doubled: the journal holds something else, or more, in the place of an acknowledged step;
* breach: a chain is broken, or the running total does not match.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.core.clock import SystemClock, SystemEntropy
from holdfast.errors import HoldfastError, TaskNotFound
from holdfast.journal.postgres.opening import open_journal
from holdfast.journal.postgres.place import PostgresPlace
from holdfast_proofs.failovers.writer import ProofKeys, task_of

FINDINGS_MAX = 50


@dataclass(slots=True)
class Told:
    """The log of one writer."""

    number: int
    folder: Path

    def lines(self) -> Iterator[list[str]]:
        path = self.folder / "log"
        for line in path.read_text().splitlines() if path.exists() else ():
            yield line.split()

    def acknowledged(self, round_number: int) -> dict[str, str]:
        """By ordinal: the token."""
        return {words[2]: words[3] for words in self.lines() if words[:2] == ["ack", str(round_number)]}

    def events(self) -> Counter[str]:
        return Counter(" ".join(words[:2]) for words in self.lines() if words[0] in ("settled", "confirmed", "trouble"))


@dataclass(slots=True)
class Verdict:
    acknowledged: int = 0
    lost: int = 0
    doubled: int = 0
    breaches: int = 0
    unheard: int = 0  # in the journal, and nobody was told: a commit in doubt that was there
    findings: list[str] = field(default_factory=list[str])

    def say(self, text: str) -> None:
        if len(self.findings) < FINDINGS_MAX:
            self.findings.append(text)


async def judge(verdict: Verdict, told: Sequence[Told], round_number: int, *, url: str, folder: Path) -> None:
    """Compare one round."""
    journal = await open_journal(
        PostgresPlace.read(url), folder, keys=ProofKeys(), clock=SystemClock(), entropy=SystemEntropy(), create=False
    )
    try:
        for one in told:
            given = one.acknowledged(round_number)
            verdict.acknowledged += len(given)
            where = f"round {round_number}, writer {one.number}"
            try:
                view = await journal.read_task(task_of(one.number, round_number))
            except TaskNotFound:
                verdict.lost += len(given)
                if given:
                    verdict.say(f"{where}: the task is not there, {len(given)} steps were acknowledged")
                continue
            except HoldfastError as error:
                verdict.breaches += 1
                verdict.say(f"{where}: {error.message}")
                continue
            kept = {ordinal: step.result for ordinal, step in view.steps.items()}
            missing = [ordinal for ordinal in given if ordinal not in kept]
            other = [ordinal for ordinal, token in given.items() if ordinal in kept and kept[ordinal] != token]
            verdict.lost += len(missing)
            verdict.doubled += len(other)
            verdict.unheard += len(kept.keys() - given.keys())
            if missing or other:
                verdict.say(f"{where}: {len(missing)} acknowledged steps lost, {len(other)} replaced")
            if list(kept) != [str(number) for number in range(1, len(kept) + 1)]:
                verdict.doubled += 1
                verdict.say(f"{where}: the steps are not in order: {list(kept)[:20]}")
        async for damage in journal.check():
            verdict.breaches += 1
            verdict.say(f"round {round_number}: {damage}")
    finally:
        await journal.close()
