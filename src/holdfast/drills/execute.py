"""One drill from beginning to end: the agent is looked at, the drill runs, production is compared, a report is sealed.

The drill's folder is outside the agent's: every write of its shadows lands there, and it is removed at the end. Its
marker is locked while a drill runs. A kill leaves the folder; the next run says so and clears it before it begins.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import shutil
import stat
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.backup.places.places import Place
from holdfast.core.clock import SystemClock, iso
from holdfast.drills.catalogue import Drill
from holdfast.drills.document import LOCK, build_report, write_report
from holdfast.drills.production import Production, copy_for_shadow, find_harm, look
from holdfast.drills.run import DrillFailed, DrillOrder, DrillRun, Tell
from holdfast.errors import BadInput, HoldfastError, NotNow, NotProven
from holdfast.host.private_files import ensure_private_folder, locked, open_private
from holdfast.layout.agent_home import AgentHome
from holdfast.surfaces import report as out
from holdfast.surfaces.register import Register, opened_journal
from holdfast.surfaces.register import look as look_at_surfaces

MARKER = "holdfast-drill.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class DrillDone:
    report: out.DrillReport
    path: Path
    evidence: dict[str, tuple[str, bytes]] = field(repr=False)


def run_drill(drill: Drill, order: DrillOrder) -> DrillDone:
    """Run it and write its report; on production only what a person confirmed. Raises NotProven where it could not
    begin; NotNow while another drill of this agent runs; BadInput for a folder that is not a drill's; ReadOnly and its
    like where no report could be written."""
    ensure_private_folder(order.home.folder / out.FOLDER)
    with locked(order.home.folder / out.FOLDER / LOCK):
        pass  # a report can be written
    with own_folder(order.folder, drill=drill.slug, tell=order.tell) as folder:
        run, register = _prepare(drill, order, folder)
        ended, reason = _run(drill, run, drill.on_production if order.production else drill.run)
        harm, changed = asyncio.run(find_harm(run.production))
        files = f"{len(run.production.marks)} files of the agent compared; {changed} changed, by its own work"
        run.check("production", not harm, "; ".join(harm) or files)
    run.event("cleanup_done", "the drill's folder is removed; no process and no mount is left", actor="drill")
    report = build_report(drill, order, run, register, harm=harm, reason=reason, verdict=ended)
    return DrillDone(report=report, path=write_report(order, report, run.evidence), evidence=run.evidence)


def _prepare(drill: Drill, order: DrillOrder, folder: Path) -> tuple[DrillRun, Register]:
    """Look at everything, and copy what a running copy needs; the files are marked last."""
    try:
        register = asyncio.run(_look_around(order.home))
        copies = copy_for_shadow(order.home, folder / "copies")
        production = asyncio.run(look(order.home))
    except NotProven:
        raise
    except HoldfastError as error:
        raise NotProven(f"{error.code}: {error.message}", hint=error.hint) from error
    except OSError as error:
        raise NotProven(str(error)) from error
    run = DrillRun(
        slug=drill.slug,
        production=production,
        folder=folder,
        copies=copies,
        key=order.key,
        place=choose_place(production, order.place),
        seed=order.seed,
        observe=order.observe,
        on=order.on,
        rsh=order.rsh,
    )
    return run, register


async def _look_around(home: AgentHome) -> Register:
    async with opened_journal(home) as opened:
        return await look_at_surfaces(home, opened, now_ms=SystemClock().wall_ms())


def _run(drill: Drill, run: DrillRun, act: Callable[[DrillRun], None] | None) -> tuple[out.Verdict | None, str]:
    """A verdict and its reason, where the checks do not give them."""
    missing = drill.find_reason(run.production)
    if missing:
        return "not applicable", missing
    if act is None:
        return "not proven", "this drill breaks too much: it runs in a shadow alone"
    try:
        try:
            act(run)
        finally:
            run.close()
    except NotProven as error:
        return "not proven", f"{error.message} ({error.hint})"
    except DrillFailed as error:
        return "fail", str(error)
    except HoldfastError as error:
        return "not proven", f"{error.code}: {error.message}"
    except OSError as error:
        return "not proven", str(error)
    return None, ""


def choose_place(production: Production, name: str) -> Place | None:
    """A place that a shadow can reach; one on another disk than the agent's if there is one."""
    usable = production.folder_places
    if name:
        if name not in [one.name for one in production.places]:
            raise BadInput(f"there is no place {name!r}", hint="`holdfast place list` shows them")
        return next((one for one in usable if one.name == name), None)
    return min(usable, key=lambda one: production.is_beside(one.root), default=None)


@contextlib.contextmanager
def own_folder(folder: Path, *, drill: str, tell: Tell) -> Generator[Path]:
    """The drill's folder, empty, for this run alone."""
    if folder.is_dir() and any(folder.iterdir()) and not (folder / MARKER).exists():
        raise BadInput(f"{folder} has files that no drill made", hint="name another folder with --folder")
    ensure_private_folder(folder)
    fd = open_private(folder / MARKER, os.O_RDWR | os.O_CREAT)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise NotNow(f"another drill runs in {folder}", hint="wait until it ends, or give --folder DIR") from None
        left = os.pread(fd, 4096, 0)
        if left:
            tell(f"the last drill was killed ({_said(left)}): removing what it left in {folder}")
        clear(folder)
        os.ftruncate(fd, 0)
        os.pwrite(fd, json.dumps({"drill": drill, "pid": os.getpid(), "began": _now()}).encode(), 0)
        try:
            yield folder
        finally:
            clear(folder)
            (folder / MARKER).unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                folder.rmdir()
    finally:
        os.close(fd)


def _said(marker: bytes) -> str:
    try:
        found = json.loads(marker)
        return f"{found['drill']}, {found['began']}"
    except (ValueError, KeyError, TypeError):
        return "its marker cannot be read"


def clear(folder: Path) -> None:
    """Remove everything but the marker. The kernel leaves folders without any right in the layers."""

    def unlocked(function: Callable[..., object], path: str, _error: object) -> None:
        for one in (os.path.dirname(path), path):
            with contextlib.suppress(OSError):
                if not os.path.islink(one):
                    os.chmod(one, stat.S_IRWXU)
        function(path)

    for one in folder.iterdir():
        if one.name == MARKER:
            continue
        if one.is_dir() and not one.is_symlink():
            shutil.rmtree(one, onerror=unlocked)
            if one.exists():
                shutil.rmtree(one)
        else:
            one.unlink()


def _now() -> str:
    return iso(time.time_ns() // 1_000_000)
