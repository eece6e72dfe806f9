"""The one place that binds the engine port to an engine: Borg."""

from __future__ import annotations

from pathlib import Path

from holdfast.backup.borg.install import install_program
from holdfast.backup.borg.verbs import Borg, ask_version, check_version, find_program, has_segments
from holdfast.backup.engine import SILENT, BackupEngine, Progress
from holdfast.errors import EngineMissing
from holdfast.layout.settings import BackupSettings

BASE = "borg"  # the engine's folder in an agent's instance folder


async def open_engine(
    settings: BackupSettings | None = None, *, base: Path, progress: Progress = SILENT
) -> BackupEngine:
    """The engine of this machine, if its version is one we rely on. Raises EngineMissing, EngineTooOld."""
    settings = settings or BackupSettings()
    program = find_program(settings.borg)
    version = await ask_version(program)
    check_version(version, accept_old=settings.accept_old_borg)
    return Borg(program, base=base, version=version, progress=progress)


async def describe_engine(settings: BackupSettings) -> str:
    """Name, version and path, for `holdfast doctor`. Raises EngineMissing, EngineTooOld.
    A version that the settings accept and we do not is too old here too."""
    program = find_program(settings.borg)
    version = await ask_version(program)
    check_version(version, accept_old=False)
    return f"Borg {'.'.join(map(str, version))} ({program})"


def holds_data(repository: Path, *, id: str) -> bool:
    """Whether a repository of this id with data is in this folder now. Opens nothing; a test restore looks inside."""
    return has_segments(repository, id=id)


def engine_program(settings: BackupSettings) -> Path:
    """The engine's program on this machine. Raises EngineMissing."""
    return find_program(settings.borg)


def is_engine_installed(settings: BackupSettings) -> bool:
    try:
        find_program(settings.borg)
    except EngineMissing:
        return False
    return True


def install_engine() -> str:
    """Build Borg beside this Python, and say where. Raises EngineMissing."""
    return f"Borg is ready: {install_program()}"
