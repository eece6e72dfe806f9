"""A campaign: the mutants of each module, some at a time; what nobody noticed is tried wider."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from holdfast_proofs.mutants.modules import SEEDS, Module, stale
from holdfast_proofs.mutants.operators import Mutant, find_mutants, mutated
from holdfast_proofs.mutants.run import POLL_S, Child, Ending, Trouble

SLACK_S = 5.0  # beyond ten times what the tests take on the code as it is
SLACK_FACTOR = 10.0


@dataclass(slots=True)
class Result:
    """What became of a module's mutants."""

    module: str
    mutants: int = 0
    killed: int = 0
    timed_out: int = 0
    explained: int = 0
    survivors: list[Mutant] = field(default_factory=list[Mutant])
    stale: list[str] = field(default_factory=list[str])
    killed_though_explained: list[str] = field(default_factory=list[str])
    seconds: float = 0.0

    @property
    def score(self) -> float:
        """Killed, of those that could be."""
        countable = self.killed + self.timed_out + len(self.survivors)
        return (self.killed + self.timed_out) / countable if countable else 1.0

    def to_json(self) -> dict[str, object]:
        return {
            "module": self.module,
            "mutants": self.mutants,
            "killed": self.killed + self.timed_out,
            "timed_out": self.timed_out,
            "survived": len(self.survivors),
            "explained": self.explained,
            "score": round(self.score, 4),
            "seconds": round(self.seconds, 1),
            "survivors": [{"key": one.key, "line": one.line, "command": command(one)} for one in self.survivors],
            "stale": self.stale,
            "killed_though_explained": self.killed_though_explained,
        }


def command(mutant: Mutant) -> str:
    return f"python -m holdfast_proofs.mutants --module {mutant.module} --mutant {mutant.number}"


Each = Callable[[Mutant, Ending], None]


def run_module(
    module: Module,
    explained: dict[str, str],
    *,
    jobs: int,
    only: Sequence[int] = (),
    each: Each = lambda _mutant, _ending: None,
) -> Result:
    """Kill what can be killed. Raises Trouble where the tests fail on the code as it is."""
    began = time.monotonic()
    source = module.path.read_text()
    mutants = find_mutants(module.name, source)
    result = Result(module.name, mutants=len(mutants))
    result.stale = stale(module.name, mutants, explained)
    chosen = [one for one in mutants if not only or one.number in only]
    left = _run_all(module, source, chosen, module.quick, 0, jobs, result, each)
    if module.wide or module.simulated:
        seeds = SEEDS if module.simulated else 0
        left = _run_all(module, source, left, module.wide, seeds, jobs, result, each)
    for mutant in left:
        if mutant.key in explained:
            result.explained += 1
        else:
            result.survivors.append(mutant)
    lively = {mutant.key for mutant in left}
    known = {mutant.key for mutant in chosen}
    result.killed_though_explained = [
        f"{module.name}: {key}" for key in explained if key in known and key not in lively
    ]
    result.seconds = time.monotonic() - began
    return result


def _run_all(
    module: Module,
    source: str,
    mutants: Iterable[Mutant],
    tests: Sequence[str],
    seeds: int,
    jobs: int,
    result: Result,
    each: Each,
) -> list[Mutant]:
    """Run these tests against each; returns those that nobody noticed."""
    waiting = list(mutants)
    if not waiting:
        return []
    seconds_max = SLACK_S + SLACK_FACTOR * _baseline(module, tests, seeds)
    running: dict[int, tuple[Mutant, Child]] = {}
    survivors: list[Mutant] = []
    waiting.reverse()
    while waiting or running:
        while waiting and len(running) < jobs:
            mutant = waiting.pop()
            tree = mutated(source, mutant.number)
            running[mutant.number] = (
                mutant,
                Child(
                    tree, module=module.full_name, path=module.path, tests=tests, seeds=seeds, seconds_max=seconds_max
                ),
            )
        ended = _ended(running)
        for number, ending in ended:
            mutant, _ = running.pop(number)
            each(mutant, ending)
            match ending:
                case "killed":
                    result.killed += 1
                case "timed out":
                    result.timed_out += 1
                case "survived":
                    survivors.append(mutant)
        if not ended:
            time.sleep(POLL_S)
    return sorted(survivors, key=lambda mutant: mutant.number)


def _ended(running: dict[int, tuple[Mutant, Child]]) -> list[tuple[int, Ending]]:
    found: list[tuple[int, Ending]] = []
    for number, (_, child) in running.items():
        ending = child.poll()
        if ending is not None:
            found.append((number, ending))
    return found


def _baseline(module: Module, tests: Sequence[str], seeds: int) -> float:
    """How long the tests take on the code as it is, on which they must pass."""
    began = time.monotonic()
    child = Child(None, module=module.full_name, path=module.path, tests=tests, seeds=seeds, seconds_max=600.0)
    if child.wait() != "survived":
        raise Trouble(f"{' '.join(tests)} fail on {module.name} as it is")
    return time.monotonic() - began
