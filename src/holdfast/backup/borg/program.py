"""Which Borg runs: found when it is needed, asked for its version, refused where it is too old."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import sys
from pathlib import Path

from holdfast.errors import BackupInterrupted, EngineMissing, EngineTooOld

NAME = "borg"
OLDEST = (1, 4)
TOO_NEW = (2,)  # another repository format, and betas that cannot read each other
VERSION_TIMEOUT_S = 60.0

Version = tuple[int, ...]


def find_program(given: str = "") -> Path:
    """The setting, else the one that set-up built beside this Python, else that of the PATH.

    Raises EngineMissing.
    """
    if given:
        path = Path(given).expanduser()
        if not os.access(path, os.X_OK):
            raise EngineMissing(f"`borg` under [backup] names {path}, which is not a program")
        return path
    beside = Path(sys.executable).parent / NAME
    if os.access(beside, os.X_OK):
        return beside
    found = shutil.which(NAME)
    if found is None:
        raise EngineMissing("Borg is not installed: no backup can be made or read")
    return Path(found)


async def ask_version(program: Path) -> Version:
    """Raises EngineMissing where it does not answer as Borg does."""
    try:
        process = await asyncio.create_subprocess_exec(
            program,
            "--version",
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C.UTF-8"},
            start_new_session=True,
        )
    except OSError as error:
        raise EngineMissing(f"cannot run {program}: {error.strerror}") from error
    try:
        async with asyncio.timeout(VERSION_TIMEOUT_S):
            answer, _ = await process.communicate()
    except TimeoutError:
        raise BackupInterrupted(f"{program} --version took too long") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    version = parse_version(answer.decode(errors="replace"))
    if version is None:
        raise EngineMissing(f"{program} does not start, or is not Borg")
    return version


def parse_version(text: str) -> Version | None:
    match = re.match(r"borg(?:\.exe)? (\d+)\.(\d+)\.(\d+)", text)
    return None if match is None else tuple(map(int, match.groups()))


def check_version(version: Version, *, accept_old: bool) -> None:
    """Raises EngineTooOld; a Borg of the next format is refused as well, whatever the setting."""
    shown = ".".join(map(str, version))
    if version >= TOO_NEW:
        raise EngineTooOld(f"Borg {shown} writes another format of repositories", hint="install Borg 1.4")
    if version < OLDEST and not accept_old:
        raise EngineTooOld(f"Borg {shown} is older than 1.4")
