"""One drill from beginning to end: the agent is looked at, the drill runs, production is compared, a report sealed."""

from __future__ import annotations

import asyncio
import os
import traceback
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.backup.places.places import Place
from holdfast.drills.catalogue import Drill
from holdfast.drills.document.build import LOCK, build_report, write_report
from holdfast.drills.own_folder import own_folder
from holdfast.drills.production import Production, copy_for_shadow, find_harm, look
from holdfast.drills.run import DrillFailed, DrillOrder, DrillRun
from holdfast.errors import BadInput, HoldfastError, NotNow, NotProven, text_of
from holdfast.host.private_files import ensure_private_folder, locked, locked_now
from holdfast.surfaces import report as out
from holdfast.surfaces.register import Register, look_now

RUNNING = ".running"  # locked while a drill runs
FULL_BYTES = 4 << 20  # a shadow needs more
OTHER_DISK = "free some space, or name another disk with --folder DIR"


@dataclass(frozen=True, slots=True, kw_only=True)
class DrillDone:
    report: out.DrillReport
    path: Path
    evidence: dict[str, tuple[str, bytes]] = field(repr=False)


@contextmanager
def _alone(folder: Path) -> Generator[None]:
    """One drill of an agent at a time, in whatever folders: a second one would find the report of the first."""
    with locked_now(folder / RUNNING) as mine:
        if not mine:
            raise NotNow("another drill of this agent runs", hint="wait until it ends")
        yield


@contextmanager
def _writing(folder: Path) -> Generator[None]:
    """Raises NotProven: what nobody can read is no proof."""
    try:
        yield
    except (HoldfastError, OSError) as error:
        hint = (error.hint if isinstance(error, HoldfastError) else "") or f"see to {folder}, then run the drill again"
        raise NotProven(f"no report could be written: {text_of(error)}", hint=hint) from error


def run_drill(drill: Drill, order: DrillOrder) -> DrillDone:
    """Run it and write its report; on production only what a person confirmed. Raises NotProven where it could not
    begin, or no report could be written; NotNow while another drill of this agent runs; BadInput for a folder that is
    not a drill's."""
    reports = order.home.folder / out.FOLDER
    with _writing(reports):
        ensure_private_folder(reports)
        with locked(reports / LOCK):
            pass
    with _alone(reports):
        with own_folder(order.folder, drill=drill.slug, tell=order.tell) as folder:
            run, register = _prepare(drill, order, folder)
            act = drill.on_production if order.production else drill.on_stand if order.stand else drill.run
            ended, reason = _run(drill, run, act)
            harm, changed = asyncio.run(find_harm(run.production))
            files = f"{len(run.production.marks)} files of the agent compared; {changed} changed, by its own work"
            run.check("production", not harm, "; ".join(harm) or files)
        run.event("cleanup_done", "the drill's folder is removed; no process and no mount is left", actor="drill")
        report = build_report(drill, order, run, register, harm=harm, reason=reason, verdict=ended)
        with _writing(reports):
            return DrillDone(report=report, path=write_report(order, report, run.evidence), evidence=run.evidence)


def _prepare(drill: Drill, order: DrillOrder, folder: Path) -> tuple[DrillRun, Register]:
    """Look at everything, and copy what a running copy needs; the files are marked last."""
    try:
        register = asyncio.run(look_now(order.home))
        copies = copy_for_shadow(order.home, folder / "copies")
        production = asyncio.run(look(order.home))
    except NotProven:
        raise
    except (HoldfastError, OSError) as error:
        if full := find_full(folder):
            raise NotProven(full, hint=OTHER_DISK) from error
        if isinstance(error, HoldfastError):
            raise NotProven(f"{error.code}: {error.message}", hint=error.hint) from error
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
        rescue_key=order.rescue_key,
    )
    return run, register


def _run(drill: Drill, run: DrillRun, act: Callable[[DrillRun], None] | None) -> tuple[out.Verdict | None, str]:
    """A verdict and its reason, where the checks do not give them."""
    missing = drill.find_reason(run.production)
    if missing:
        return "not applicable", missing
    if act is None:
        return "not proven", "this drill does not run in that way"
    try:
        try:
            act(run)
        finally:
            run.close()
    except NotProven as error:
        return "not proven", f"{error.message} ({error.hint})"
    except (DrillFailed, HoldfastError, OSError) as error:
        if full := find_full(run.folder):  # the drill's own trouble, not the agent's
            return "not proven", f"{full} ({OTHER_DISK})"
        if isinstance(error, DrillFailed):
            return "fail", str(error)
        return "not proven", f"{error.code}: {error.message}" if isinstance(error, HoldfastError) else str(error)
    except Exception as error:  # noqa: BLE001 - a bug in one drill hides neither its report nor the next drill
        run.evidence["traceback.txt"] = ("traceback", traceback.format_exc().encode(errors="backslashreplace"))
        text = f"{type(error).__name__}: {text_of(error)}"
        return "not proven", f"the drill itself failed, which is a bug in Holdfast: {text}"
    return None, ""


def find_full(folder: Path) -> str:
    """Why a shadow cannot run in this folder; empty where there is space."""
    found = os.statvfs(folder)
    return f"no space left for the shadow in {folder}" if found.f_bavail * found.f_frsize < FULL_BYTES else ""


def choose_place(production: Production, name: str) -> Place | None:
    """A place that a shadow can reach; one on another disk than the agent's if there is one."""
    usable = production.folder_places
    if name:
        if name not in [one.name for one in production.places]:
            raise BadInput(f"there is no place {name!r}", hint="`holdfast place list` shows them")
        return next((one for one in usable if one.name == name), None)
    return min(usable, key=lambda one: production.is_beside(one.root), default=None)
