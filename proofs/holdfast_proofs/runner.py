"""The command line and the report that all proofs share.

A proof is a purpose, its own options, and a function from the options to a `Result`. The runner
adds `--json` and `--report`, prints findings and one closing line (`green: ...` or `RED: ...`),
and ends with 0, 1 where anything is red, or 2 where the proof could not run.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from holdfast.errors import HoldfastError
from holdfast_proofs.shim import build, preloaded

BUILD = Path("build")
_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - a private folder is made in it; a sync there is free


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    green: bool
    summary: str  # one line, with its figures
    figures: object  # what --json prints and --report keeps
    findings: Sequence[str] = ()
    again: str = ""  # the options that run one finding alone


def self_tested(pool: Executor, find_first: Callable[[str], tuple[int, str] | None], faults: list[str]) -> Result:
    """Each planted fault must be noticed: `find_first` gives the first seed that shows it, and how."""
    found = dict(zip(faults, pool.map(find_first, faults), strict=True))
    told = [f"{name}: {'NOT NOTICED' if one is None else f'seed {one[0]}: {one[1]}'}" for name, one in found.items()]
    missed = sum(one is None for one in found.values())
    return Result(
        green=not missed,
        figures=found,
        findings=told,
        again="--self-test --fault NAME",
        summary=f"{len(found) - missed} of {len(found)} planted faults were noticed",
    )


class ProofFailed(HoldfastError):
    """The processes of a proof ended without figures."""

    code = "proof-failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    name: str  # of the module below holdfast_proofs
    purpose: str
    add_options: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], Result]

    def main(self, arguments: Sequence[str] | None = None) -> int:
        given = self._parse(arguments)
        before = signal.signal(signal.SIGTERM, _leave)
        try:
            result = self.run(given)
        except HoldfastError as error:
            print(f"error: {error.message}\nhint: {error.hint}", file=sys.stderr)
            return 2
        finally:
            signal.signal(signal.SIGTERM, before)
        raw = msgspec.json.format(msgspec.json.encode(result.figures), indent=1)
        if given.report is not None:
            given.report.parent.mkdir(parents=True, exist_ok=True)
            given.report.write_bytes(raw + b"\n")
        if given.json:
            print(raw.decode())
        else:
            self._print(result)
        return 0 if result.green else 1

    def _parse(self, arguments: Sequence[str] | None) -> argparse.Namespace:
        parser = argparse.ArgumentParser(prog=self._command, description=self.purpose)
        self.add_options(parser)
        parser.add_argument("--json", action="store_true", help="print the figures as JSON")
        parser.add_argument("--report", type=Path, metavar="FILE", help="write the figures to this file too")
        return parser.parse_args(arguments)

    def _print(self, result: Result) -> None:
        for finding in result.findings:
            print(f"  {finding}")
        if result.findings and result.again:
            print(f"  again: {self._command} {result.again}")
        print(f"{'green' if result.green else 'RED'}: {result.summary}", flush=True)

    @property
    def _command(self) -> str:
        return f"python -m holdfast_proofs.{self.name}"


def _leave(number: int, _frame: object) -> None:
    """Servers and network namespaces of the proof are taken down on the way out."""
    sys.exit(128 + number)


def at_least_one(text: str) -> int:
    """How many trials: none would be green and show nothing."""
    count = int(text)
    if count < 1:
        raise argparse.ArgumentTypeError("at least 1: nothing tried is nothing shown")
    return count


@contextmanager
def fast_folder(prefix: str) -> Generator[Path]:
    """A private folder in memory where there is one: what is tried is the order of calls."""
    memory = _SHARED_MEMORY if os.access(_SHARED_MEMORY, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix=f"holdfast-{prefix}-", dir=memory) as folder:
        yield Path(folder)


def run_with_shim(module: str, *words: str, given: bytes | None = None, library: Path | None = None) -> bytes:
    """What a module of ours prints, run in a process with the crash shim loaded."""
    done = subprocess.run(
        [sys.executable, "-m", f"holdfast_proofs.{module}", *words],
        env=os.environ | preloaded(library or build(BUILD / "shim")),
        input=given,
        stdin=subprocess.DEVNULL if given is None else None,
        stdout=subprocess.PIPE,
    )
    if done.returncode:
        raise ProofFailed(f"{module} ended with {done.returncode}", hint="its messages are above")
    return done.stdout
