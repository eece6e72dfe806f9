"""`crash_everywhere`: a task of yours is killed at every boundary of the runtime, and its far ends count what it did.

A first run is left alone: it shows the boundaries that the task reaches (`drills/boundaries.py`), and what the far ends
count when nothing goes wrong. Then there is one trial for each boundary, with a journal of its own: a real process runs
the task and kills itself there, a second process gets the same request and finishes it. Whatever the far ends then have
more of than after the first run was done twice; what a task that succeeded has less of was lost.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, cast

import msgspec

from holdfast.core.decoding import decode_json
from holdfast.drills.boundaries import Boundary
from holdfast.errors import BadInput, Misuse
from holdfast.layout.engine_settings import Settings
from holdfast.runtime.task.task import TaskType
from holdfast.runtime.tool.child import place_in
from holdfast.testing.crash_counts import Counts, FarEndCounts, compare, read_counts
from holdfast.testing.crash_life import LifeOrder, Line

LIVES = "holdfast.testing.crash_life"
PACE = 0.02  # of waits between attempts and of quiet times
PATIENCE_S = 60.0
END_S = 30.0  # for the start and the end of a process, beyond its task
DURING_S_MIN = 0.002  # a shorter call has no middle that a timer could meet
LOG_CHARS = 2_000
QUICK = Settings(pace=PACE, sweep_every_s=0.05, check_after_crash=False)


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one kill."""

    point: str
    what: str  # what the runtime was about to do, or had just done
    reached: bool  # False: the task ended before
    state: str  # of the task in the end
    text: str = ""  # the question of a parked one, the error of a failed one
    duplicates: dict[str, int] = msgspec.field(default_factory=dict[str, int])
    lost: dict[str, int] = msgspec.field(default_factory=dict[str, int])
    folder: str = ""  # its journal and the output of its processes, where they were kept

    @property
    def verdict(self) -> str:
        if self.duplicates:
            return "duplicate"
        if self.state == "parked":
            return "parked"
        if self.state != "succeeded":
            return self.state
        return "lost" if self.lost else "ok"


class CrashReport(msgspec.Struct, frozen=True, kw_only=True):
    """What `crash_everywhere` found."""

    task: str
    counted: dict[str, int]  # by the far ends, after a run that nothing disturbed
    trials: tuple[Trial, ...]
    seconds: float

    def found(self, verdict: str) -> tuple[Trial, ...]:
        return tuple(one for one in self.trials if one.verdict == verdict)

    @property
    def duplicates(self) -> tuple[Trial, ...]:
        return self.found("duplicate")

    @property
    def lost(self) -> tuple[Trial, ...]:
        return self.found("lost")

    @property
    def parked(self) -> tuple[Trial, ...]:
        return self.found("parked")

    @property
    def ok(self) -> bool:
        """Every kill ended with each effect once, and nothing is left for a person."""
        return all(one.verdict == "ok" for one in self.trials)

    def check(self, *, parks: bool = False) -> None:
        """Raise AssertionError with the whole report unless it is ok; `parks`: a task may wait for a person."""
        if any(one.verdict not in ("ok", *(("parked",) if parks else ())) for one in self.trials):
            raise AssertionError(str(self))

    def __str__(self) -> str:
        killed = sum(one.reached for one in self.trials)
        lines = [f"{self.task}: killed at {killed} points, {self.seconds:.1f} s"]
        lines.append(f"  undisturbed: {_listed(self.counted)}")
        missed = len(self.trials) - killed
        if missed:
            lines.append(f"  {missed} points were not reached again: the task takes another way each time")
        bad = [one for one in self.trials if one.verdict != "ok"]
        for one in bad:
            lines.append(f"  {one.verdict.upper():9} at {one.point} ({one.what})")
            lines += [f"            {count} too many: {name}" for name, count in one.duplicates.items()]
            if one.state == "succeeded":
                lines += [f"            {count} missing: {name}" for name, count in one.lost.items()]
            if one.text:
                lines.append(f"            {one.text}")
            if one.folder:
                lines.append(f"            kept: {one.folder}")
        lines.append(f"  ok at {len(self.trials) - len(bad)} points")
        if bad:
            again = next((one.point for one in bad if not one.point.endswith("-during")), bad[0].point)
            lines.append(f"  one again: points=[{again!r}], or with pytest --crash-point {again}")
        return "\n".join(lines)


def crash_everywhere(
    task: TaskType | str,
    far_end: FarEndCounts | list[FarEndCounts],
    *,
    args: Mapping[str, Any] | None = None,
    env: Mapping[str, str] | None = None,
    secrets: Mapping[str, str] | None = None,
    settings: Settings | None = None,
    folder: str | os.PathLike[str] | None = None,
    points: Iterable[str] = (),
    patience_s: float = PATIENCE_S,
) -> CrashReport:
    """Kill the task at every boundary of the runtime, resume it in a new process, and count at the far ends.

    Args:
        task: a task at the top level of a module, or `module:task` or `file.py:task`. It must end by itself.
        far_end: what counts: a service of `holdfast.downstream`; a function that returns how often each thing was done
            so far (a mapping of names to counts; also async); a URL that answers such a mapping as JSON; or a list of
            them.
        args: the task's arguments.
        env: variables for its processes, beside the present ones, such as the address of the far end.
        secrets: values for `secret://NAME` in its tools and models.
        settings: of its engine; the default shortens waits and quiet times.
        folder: where the journals go; those of bad trials are kept. Without it nothing is kept.
        points: only these, by name, such as "commit-4-before".
        patience_s: after so long a task that has not ended is reported as unfinished.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(
            crash_everywhere_async(
                task,
                far_end,
                args=args,
                env=env,
                secrets=secrets,
                settings=settings,
                folder=folder,
                points=points,
                patience_s=patience_s,
            )
        )
    raise Misuse(
        "crash_everywhere was called while an event loop runs", hint="`await holdfast.testing.crash_everywhere_async`"
    )


async def crash_everywhere_async(
    task: TaskType | str,
    far_end: FarEndCounts | list[FarEndCounts],
    *,
    args: Mapping[str, Any] | None = None,
    env: Mapping[str, str] | None = None,
    secrets: Mapping[str, str] | None = None,
    settings: Settings | None = None,
    folder: str | os.PathLike[str] | None = None,
    points: Iterable[str] = (),
    patience_s: float = PATIENCE_S,
) -> CrashReport:
    """`crash_everywhere` for async code, and for far ends that run in this event loop."""
    main = getattr(sys.modules["__main__"], "__spec__", None)
    if main is not None and main.name == LIVES:  # each process would start the next, without end
        raise Misuse(
            "crash_everywhere is called when the file of the task is loaded: put the call below "
            '`if __name__ == "__main__":`, or the task into a file of its own'
        )
    app, name = _find_app(task)
    ends = cast("list[FarEndCounts]", far_end) if isinstance(far_end, list) else [far_end]
    began = time.monotonic()
    with ExitStack() as stack:
        kept = folder is not None
        if folder is None:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="holdfast-crash-"))
        else:
            Path(folder).mkdir(mode=0o700, parents=True, exist_ok=True)
            folder = tempfile.mkdtemp(prefix="crashes-", dir=folder)
        stage = _Stage(
            app=app,
            task=name,
            args=dict(args or {}),
            env={**os.environ, **(env or {})},
            secrets=dict(secrets or {}),
            settings=settings or QUICK,
            folder=Path(folder),
            kept=kept,
            patience_s=patience_s,
            ends=ends,
        )
        try:
            known, counted = await stage.learn()
            trials = [await stage.trial(one, counted) for one in _choose(known, tuple(points))]
        finally:
            await stage.close()
    return CrashReport(task=name, counted=counted, trials=tuple(trials), seconds=time.monotonic() - began)


class _Point(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    what: str
    at: str  # the boundary's name
    after_s: float = 0.0


class _Stage:
    """One task and its far ends. Any: JSON arguments of the task."""

    def __init__(
        self,
        *,
        app: str,
        task: str,
        args: dict[str, Any],
        env: dict[str, str],
        secrets: dict[str, str],
        settings: Settings,
        folder: Path,
        kept: bool,
        patience_s: float,
        ends: Sequence[FarEndCounts],
    ) -> None:
        self._app, self._task, self._args, self._env = app, task, args, env
        self._secrets, self._settings = secrets, asdict(settings)
        self._folder, self._patience_s, self._ends = folder, patience_s, ends
        self._kept, self._made = kept, 0
        self._lives: asyncio.subprocess.Process | None = None

    async def learn(self) -> tuple[list[_Point], dict[str, int]]:
        """A run that is left alone: the points of its way, and what was counted."""
        folder = self._new_folder("undisturbed")
        before = await self._count()
        lines, _ = await self._live(folder, number=1)
        counted = await self._count()
        counted.subtract(before)
        end = lines[-1] if lines else Line()
        if end.state != "succeeded":
            log = (folder / "life-1.log").read_text(errors="replace")[-LOG_CHARS:]
            raise BadInput(
                f"{self._task}: a run without any kill does not succeed: {end.text or end.state or log}",
                hint="it must end by itself, with arguments and far ends as in your test",
            )
        done = {name: count for name, count in counted.items() if count > 0}
        if not done:
            raise BadInput(
                f"{self._task}: the far end counts nothing in a run without any kill",
                hint="let the task send to the far end that you pass: else no repeat could be found",
            )
        shutil.rmtree(folder)
        return _points(lines), done

    async def trial(self, point: _Point, counted: Counts) -> Trial:
        folder = self._new_folder(point.name)
        before = await self._count()
        lines, code = await self._live(folder, number=1, die_at=point.at, die_after_s=point.after_s)
        reached = code == -signal.SIGKILL
        if reached:
            lines, code = await self._live(folder, number=2)
        end = lines[-1] if lines and not lines[-1].boundary else Line(state="broken", text=f"exit code {code}")
        after = await self._count()
        after.subtract(before)
        duplicates, lost = compare(counted, after)
        done = Trial(
            point=point.name,
            what=point.what,
            reached=reached,
            state=end.state,
            text=end.text,
            duplicates=duplicates,
            lost=lost,
            folder=str(folder) if self._kept else "",
        )
        if done.verdict == "ok":
            shutil.rmtree(folder)
        return done

    def _new_folder(self, name: str) -> Path:
        self._made += 1
        folder = self._folder / f"{self._made:03}-{name}"
        folder.mkdir(mode=0o700, parents=True)
        return folder

    async def _live(
        self, folder: Path, *, number: int, die_at: str = "", die_after_s: float = 0.0
    ) -> tuple[list[Line], int]:
        """One process, to its end; what it wrote, and its exit code."""
        lines = folder / f"life-{number}.jsonl"
        order = LifeOrder(
            path=tuple(sys.path),
            app=self._app,
            task=self._task,
            args=self._args,
            journal=str(folder / "journal.db"),
            secrets=self._secrets,
            settings=self._settings,
            log=str(folder / f"life-{number}.log"),
            lines=str(lines),
            patience_s=self._patience_s,
            die_at=die_at,
            die_after_s=die_after_s,
        )
        code = await self._ordered(order)
        raw = lines.read_bytes().splitlines() if lines.exists() else []
        return [decode_json(one, Line) for one in raw], code

    async def _ordered(self, order: LifeOrder) -> int:
        """Let a process live by this order, to its end; its exit code."""
        process = await self._process()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            async with asyncio.timeout(self._patience_s + END_S):
                process.stdin.write(msgspec.json.encode(order) + b"\n")
                said = await process.stdout.readline()
                return int(said) if said else await process.wait()
        except TimeoutError:
            await self.close()
            return 1

    async def _process(self) -> asyncio.subprocess.Process:
        if self._lives is None or self._lives.returncode is not None:
            self._lives = await asyncio.create_subprocess_exec(
                *(sys.executable, "-P", "-m", LIVES),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                env=self._env,
                process_group=0,
            )
        return self._lives

    async def close(self) -> None:
        """End the process of lives, and what it started."""
        if self._lives is not None and self._lives.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self._lives.pid, signal.SIGKILL)
            await self._lives.wait()

    async def _count(self) -> Counter[str]:
        found: Counter[str] = Counter()
        for number, end in enumerate(self._ends):
            start = f"far end {number + 1}: " if len(self._ends) > 1 else ""
            found.update({f"{start}{name}": count for name, count in (await read_counts(end)).items()})
        return found


def _points(lines: Iterable[Line]) -> list[_Point]:
    """The boundaries of a run in order, and the middle of each call that takes a while."""
    reached = [(one.boundary, one.at_s) for one in lines if one.boundary is not None]
    points: list[_Point] = []
    for index, (one, at_s) in enumerate(reached):
        points.append(_Point(name=one.name, what=one.what, at=one.name))
        if one.kind != "commit" and one.when == "after":
            took_s = _next_commit_s(reached[index + 1 :], at_s) - at_s
            if took_s >= DURING_S_MIN:
                name = f"{one.kind}-{one.number}-during"
                points.append(_Point(name=name, what=f"{one.what}: half-way", at=one.name, after_s=took_s / 2))
    return points


def _next_commit_s(later: Iterable[tuple[Boundary, float]], default: float) -> float:
    return next((at_s for one, at_s in later if one.kind == "commit"), default)


def _choose(points: Sequence[_Point], names: Sequence[str]) -> list[_Point]:
    known = {one.name: one for one in points}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise BadInput(f"the task has no point {unknown[0]!r}", hint=f"its points are: {', '.join(known)}")
    return [known[name] for name in names] if names else list(points)


def _listed(counts: Counts) -> str:
    return ", ".join(f"{count} x {name}" for name, count in counts.items())


# Where another process finds the task


def _find_app(task: TaskType | str) -> tuple[str, str]:
    """How a process loads the task, and its name."""
    if isinstance(task, str):
        from holdfast.app.loading import load_app

        return task, load_app(task).task("").name
    own = sys.modules.get(task.__module__)
    for module in ([] if own is None else [own]) + list(sys.modules.values()):
        for attribute, value in list(vars(module).items()):
            if value is task:
                place = place_in(module, attribute)
                return f"{place.file or place.module}:{place.name}", task.name
    raise Misuse(
        f"no module holds the task {task.name}: another process cannot load it",
        hint="define it at the top level of a module, and pass what changes by `args` or `env`",
    )
