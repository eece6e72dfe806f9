"""One target in a process of its own, whose death says something too.

    python -m holdfast_proofs.fuzz.child TARGET RUNS SEED RESULT ENGINE

atheris rewrites the modules that it is to follow while they are imported, and its loop ends the
process; so this file imports nothing of ours before, and the result is written from inside.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import sys
import tempfile
import time
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from holdfast_proofs.fuzz.targets import Target
    from holdfast_proofs.fuzz.watch import Watch

FOLLOWED = [
    "holdfast.core",
    "holdfast.journal",
    "holdfast.runtime",
    "holdfast.app",
    "holdfast.cli",
    "holdfast.downstream",
    "h11",
]
HANG_S = 20  # libFuzzer ends the process then; our own limit of a second is noted, not fatal
MEMORY_MIB_MAX = 256
WRITE_EVERY = 2_000


def main() -> None:
    name, runs, seed, result, engine = sys.argv[1:]
    if engine == "atheris":
        _run_atheris(name, runs=int(runs), seed=int(seed), result=Path(result))
    else:
        from holdfast_proofs.fuzz.mutations import run_mutations

        target, watch = _load(name)
        began = time.monotonic()
        run_mutations(target, watch, runs=int(runs), seed=int(seed))
        _write(Path(result), watch, began)


def _load(name: str) -> tuple[Target, Watch]:
    from holdfast_proofs.fuzz.targets import TARGETS
    from holdfast_proofs.fuzz.watch import Watch

    return TARGETS[name], Watch(TARGETS[name])


def _run_atheris(name: str, *, runs: int, seed: int, result: Path) -> None:
    atheris: Any = importlib.import_module("atheris")  # Any: it has no types, and may be missing
    following: AbstractContextManager[object] = atheris.instrument_imports(include=FOLLOWED)
    with following:
        target, watch = _load(name)
    place = Path(tempfile.mkdtemp(prefix="holdfast-fuzz-"))
    corpus, words = place / "corpus", place / "words"
    corpus.mkdir()
    for number, raw in enumerate(target.seeds):
        (corpus / str(number)).write_bytes(raw)
    words.write_text("".join(f'"{_escaped(word)}"\n' for word in target.words))
    began = time.monotonic()

    def once(raw: bytes) -> None:
        watch.run(raw)
        if watch.executions >= runs or watch.executions % WRITE_EVERY == 0:
            _write(result, watch, began)
        if watch.executions >= runs:
            sys.stdout.flush()
            os._exit(0)  # libFuzzer would count on, and Python's own end never comes

    arguments = [
        sys.argv[0],
        f"-runs={runs + 1_000}",
        f"-seed={seed + 1}",
        f"-max_len={target.bytes_max}",
        f"-timeout={HANG_S}",
        f"-rss_limit_mb={MEMORY_MIB_MAX}",
        "-print_final_stats=0",
        "-verbosity=0",
        f"-artifact_prefix={place}/",
        str(corpus),
    ]
    if target.words:
        arguments.append(f"-dict={words}")
    atheris.Setup(arguments, once)
    atheris.Fuzz()


def _escaped(word: bytes) -> str:
    return "".join(f"\\x{byte:02x}" for byte in word[:60])


def _write(path: Path, watch: Watch, began: float) -> None:
    shown = {
        "target": watch.target.name,
        "executions": watch.executions,
        "accepted": watch.accepted,
        "seconds": round(time.monotonic() - began, 2),
        "slowest_ms": round(watch.slowest_s * 1000, 1),
        "memory_mib": _memory_kib() // 1024,
        "findings": [asdict(cast(Any, one)) for one in watch.findings.values()],
    }
    path.with_suffix(".new").write_text(json.dumps(shown))
    path.with_suffix(".new").replace(path)


def _memory_kib() -> int:
    """The most that this program used. Not by getrusage, which counts its parent's size too."""
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


if __name__ == "__main__":
    main()
