"""Borg's verbs, as Holdfast uses them.

Routine verbs wait a minute for the repository's lock and reject a repository that moved or went
back in time; verbs with `rescue=True` do neither, and need a fresh base folder.

There is no `extract`: archives go through our own reader, never straight to the disk. There is no
`prune`: Borg's rules do not know which snapshot was verified, so retention.py decides.

A snapshot is one archive, cut every 4 KiB: see docs/decisions/0033.

Once ten segments hold something that is not needed any more, Borg writes nothing unless the disk
has room for one whole segment more: half a gigabyte by its own measure, which calls a small disk
full that is not. So our segments are small, and an older repository gets small ones when it says
that it is full. Compacting ends that demand too, but destroys for good what another program deleted:
callers first look whether anything is missing.

The program is found when it is needed, asked for its version, and refused where it is too old.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import sys
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, nullcontext, suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from holdfast.backup.borg.log import Verb
from holdfast.backup.borg.process import Call, Run, environment, running
from holdfast.backup.engine import LONG_S, SILENT, Archive, Created, Listing, OnAmount, Progress, Repository, awaited
from holdfast.core.decoding import decode_json
from holdfast.errors import (
    BackupFailed,
    BackupInterrupted,
    BadInput,
    EngineMissing,
    EngineTooOld,
    HoldfastError,
    PassphraseRefused,
    PlaceFull,
    PlaceUnreachable,
    RepositoryDamaged,
    RepositoryKeyMissing,
    RepositoryMoved,
)
from holdfast.host.private_files import ensure_private_folder, read_plain, write_atomically

NAME = "borg"
OLDEST = (1, 4)
TOO_NEW = (2,)  # another repository format, and betas that cannot read each other
VERSION_TIMEOUT_S = 60.0

Version = tuple[int, ...]


def find_program(given: str = "") -> Path:
    """The setting, else the one that set-up built beside this Python, else that of the PATH. Raises EngineMissing."""
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
        raise EngineMissing("Borg is not installed: Holdfast cannot make or read backups")
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
        raise BackupInterrupted(f"`{program} --version` gave no answer within {VERSION_TIMEOUT_S:g} s") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    version = parse_version(answer.decode(errors="replace"))
    if version is None:
        raise EngineMissing(f"`{program} --version` does not name a version of Borg")
    return version


def parse_version(text: str) -> Version | None:
    match = re.match(r"borg(?:\.exe)? (\d+)\.(\d+)\.(\d+)", text)
    return None if match is None else tuple(map(int, match.groups()))


def check_version(version: Version, *, accept_old: bool) -> None:
    """Raises EngineTooOld; a Borg of the next format is refused as well, whatever the setting."""
    shown = ".".join(map(str, version))
    if version >= TOO_NEW:
        raise EngineTooOld(
            f"Borg {shown} uses a repository format that Holdfast does not support", hint="install Borg 1.4"
        )
    if version < OLDEST and not accept_old:
        raise EngineTooOld(f"Borg {shown} is too old: Holdfast needs Borg 1.4")


ENCRYPTION = "repokey-blake2"
CHUNKER = "fixed,4096"  # the page of SQLite: a changed page is one new chunk
COMPRESSION = "zstd,3"
# Borg does not read again what it read before: a copy in the staging folder that changed is another file.
FILES_CACHE = "ctime,size,inode"
SEGMENT_BYTES = 16 << 20
LOCK_WAIT_S = 60
ANSWER_S = 60.0  # for a far host to list its snapshots, beside the wait for the lock
SLOW_S = 10.0  # a host that took longer to fail is not asked again ...
FORGET_S = 300.0  # ... for so long
# ssh asks no questions, gives up a host that does not answer, and notices one that disappears.
SSH_OPTIONS = "-o BatchMode=yes -o ConnectTimeout=20 -o ServerAliveInterval=15 -o ServerAliveCountMax=3"
CONFIG_BYTES_MAX = 64 * 1024
_ARCHIVE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")


class Borg:
    """A Borg program with a base folder of its own: cache, and what it knows of repositories.
    The promises of each verb are those of `engine.Engine`."""

    key_command = "borg key import"

    def __init__(self, program: Path, *, base: Path, version: Version = (), progress: Progress = SILENT) -> None:
        self.program = program
        self.base = base.absolute()  # Borg works in another folder
        self.version = version
        self.progress = progress
        self._unanswered: dict[tuple[str, str], tuple[float, PlaceUnreachable]] = {}

    @property
    def label(self) -> str:
        return f"borg {'.'.join(map(str, self.version))}"

    def fresh(self, base: Path) -> Borg:
        return Borg(self.program, base=base, version=self.version, progress=self.progress)

    async def init(self, repository: Repository) -> None:
        await self._do(Verb.INIT, repository, "--encryption", ENCRYPTION, repository.address)
        await self._narrow(repository)

    async def create(
        self,
        repository: Repository,
        archive: str,
        folder: Path,
        *,
        on_progress: OnAmount | None = None,
        timeout_s: float = LONG_S,
    ) -> Created:
        fixed = f"--json --chunker-params {CHUNKER} --compression {COMPRESSION} --files-cache {FILES_CACHE}"
        bare = "--numeric-ids --noflags --noacls --noxattrs"
        progress = ["--progress"] if on_progress else []
        arguments = [*fixed.split(), *bare.split(), *progress, _target(repository, archive), "."]
        call = Call(Verb.CREATE, repository, arguments, cwd=folder, on_progress=on_progress, timeout_s=timeout_s)
        raw = await self._run_writing(call)
        answer = _parsed(raw, Verb.CREATE, repository)
        try:
            made, stats = answer["archive"], answer["archive"]["stats"]
            return Created(
                archive=str(made["name"]),
                id=str(made["id"]),
                repository_id=str(answer["repository"]["id"]),
                files=int(stats["nfiles"]),
                original_bytes=int(stats["original_size"]),
                stored_bytes=int(stats["deduplicated_size"]),
                seconds=float(made["duration"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise _odd(Verb.CREATE, repository) from error

    async def list_archives(self, repository: Repository, *, prefix: str = "", rescue: bool = False) -> Listing:
        """A far host has a minute to answer."""
        only = ["--glob-archives", f"{prefix}*"] if prefix else []
        wait_s = ANSWER_S + (0 if rescue else LOCK_WAIT_S)
        arguments = ["--json", *only, repository.address]
        call = Call(Verb.LIST, repository, arguments, rescue=rescue)
        if repository.is_far:
            call = replace(call, timeout_s=wait_s, late=PlaceUnreachable)
        answer = _parsed(await self._run(call), Verb.LIST, repository)
        try:
            listing = Listing(
                repository_id=str(answer["repository"]["id"]),
                encryption=str(answer["encryption"]["mode"]),
                archives=tuple(map(_archive, answer["archives"])),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise _odd(Verb.LIST, repository) from error
        if not rescue:
            repository.check_id(listing.repository_id)
        return listing

    @asynccontextmanager
    async def export_tar(
        self,
        repository: Repository,
        archive: str,
        *,
        paths: Sequence[str] = (),
        rescue: bool = False,
        timeout_s: float = LONG_S,
    ) -> AsyncGenerator[AsyncGenerator[bytes, None], None]:
        arguments = [_target(repository, archive), "-", *paths]
        call = Call(Verb.EXPORT, repository, arguments, rescue=rescue, timeout_s=timeout_s)
        async with self._running(call) as run:
            yield _checked_pieces(run)

    async def check(self, repository: Repository) -> None:
        await self._run(Call(Verb.CHECK, repository, ["--verify-data", repository.address], timeout_s=LONG_S))

    async def delete(self, repository: Repository, archives: Sequence[str]) -> None:
        if not archives:
            return
        first, *rest = archives
        arguments = [_target(repository, first), *map(_checked_name, rest)]
        await self._run_writing(Call(Verb.DELETE, repository, arguments, timeout_s=LONG_S))

    async def compact(self, repository: Repository) -> None:
        await self._run_writing(Call(Verb.COMPACT, repository, [repository.address], timeout_s=LONG_S))

    async def export_key(self, repository: Repository) -> str:
        raw = await self._do(Verb.KEY_EXPORT, repository, repository.address)
        text = raw.decode(errors="replace")
        if not text.startswith("BORG_KEY "):
            raise _odd(Verb.KEY_EXPORT, repository)
        return text

    async def import_key(self, repository: Repository, key: str) -> None:
        ensure_private_folder(self.base)
        path = self.base / f"{repository.name}.key"
        write_atomically(path, key.encode())
        try:
            await self._do(Verb.KEY_IMPORT, repository, repository.address, str(path))
        finally:
            path.unlink(missing_ok=True)

    async def break_lock(self, repository: Repository) -> None:
        await self._do(Verb.BREAK_LOCK, repository, repository.address)

    async def _narrow(self, repository: Repository) -> bool:
        """Give a repository small segments from now on; whether it had large ones.
        Borg does that only where the repository is a folder of this machine."""
        if repository.is_far or _segment_bytes(Path(repository.address)) <= SEGMENT_BYTES:
            return False
        await self._do(Verb.CONFIG, repository, repository.address, "max_segment_size", str(SEGMENT_BYTES))
        return True

    async def _run_writing(self, call: Call) -> bytes:
        """Once more, where a place called itself full only because of its large segments."""
        try:
            return await self._run(call)
        except PlaceFull as full:
            try:
                fixed = await self._narrow(call.repository)
            except HoldfastError:
                raise full from None
            if not fixed:
                raise
        return await self._run(call)

    async def _do(self, verb: Verb, repository: Repository, *arguments: str) -> bytes:
        return await self._run(Call(verb, repository, arguments))

    async def _run(self, call: Call) -> bytes:
        name = call.repository.name
        what = f"asking place {name}" if call.verb is Verb.LIST else f"place {name}: borg {call.verb}"
        waiting = nullcontext() if call.on_progress else awaited(self.progress, what)
        async with waiting, self._running(call) as run:
            return await run.read()

    @asynccontextmanager
    async def _running(self, call: Call) -> AsyncGenerator[Run, None]:
        repository = call.repository
        self._check_answers(repository)
        began = time.monotonic()
        ensure_private_folder(self.base)
        if not repository.is_far:
            await asyncio.to_thread(_check_plain, Path(repository.address))
        lock = ["--bypass-lock"] if call.rescue else ["--lock-wait", str(LOCK_WAIT_S)]
        remote = ["--remote-path", repository.remote_program] if repository.remote_program else []
        rsh = rsh_of(repository.rsh) if repository.is_far else ""
        try:
            env = environment(base=self.base, rescue=call.rescue, rsh=rsh)
            async with running(self.program, call, options=[*lock, *remote], env=env) as run:
                yield run
        except PlaceUnreachable as error:
            if time.monotonic() - began > SLOW_S:
                self._unanswered[_host(repository)] = (time.monotonic(), error)
            raise
        except (PassphraseRefused, RepositoryMoved, RepositoryKeyMissing):
            if call.verb is not Verb.KEY_EXPORT and repository.id:
                repository.check_id(await self._find_id(repository) or repository.id)
            raise

    def _check_answers(self, repository: Repository) -> None:
        """A host that let us wait in vain is not waited for again by everything that follows."""
        at, error = self._unanswered.get(_host(repository), (0.0, None))
        if error is not None and time.monotonic() - at < FORGET_S:
            raise PlaceUnreachable(error.message, hint=error.hint)

    async def _find_id(self, repository: Repository) -> str | None:
        """The id that a repository has which does not open: its key block names it, unsealed."""
        try:
            return (await self.export_key(repository)).split()[1]
        except (HoldfastError, IndexError):
            return None if repository.is_far else _id_in_config(Path(repository.address))


def rsh_of(given: str) -> str:
    """How a far host is reached. An ssh that a person names gets what it does not say itself:
    of an option that comes twice ssh takes the first."""
    if not given:
        return f"ssh {SSH_OPTIONS}"
    first = given.split(maxsplit=1)[0] if given.split() else ""
    return f"{given} {SSH_OPTIONS}" if first.rpartition("/")[2] == "ssh" else given


async def _checked_pieces(run: Run) -> AsyncGenerator[bytes, None]:
    async for piece in run.pieces():
        yield piece
    await run.wait()


def _host(repository: Repository) -> tuple[str, str]:
    address = repository.address
    far = address.split("/", 3)[2] if repository.is_far else address
    return far, repository.rsh


def has_segments(folder: Path, *, id: str) -> bool:
    """Whether a repository of this id with data is in this folder."""
    data = folder / "data"
    try:
        filled = any(os.listdir(data / one) for one in os.listdir(data))
    except PermissionError:
        return True  # another user's: it is not known to be gone
    except OSError:
        return False
    return filled and _id_in_config(folder) == id


def _id_in_config(folder: Path) -> str | None:
    return _in_config(folder, r"^id = ([0-9a-f]{64})\s*$")


def _segment_bytes(folder: Path) -> int:
    """How large its segments grow; 0 where that cannot be known."""
    return int(_in_config(folder, r"^max_segment_size = ([0-9]{1,15})\s*$") or 0)


def _in_config(folder: Path, pattern: str) -> str | None:
    try:
        raw = read_plain(folder / "config", CONFIG_BYTES_MAX).decode(errors="replace")
    except (OSError, HoldfastError):
        return None
    found = re.search(pattern, raw, re.MULTILINE)
    return found[1] if found else None


def _check_plain(folder: Path) -> None:
    """Only files and folders are in a repository: at a pipe Borg would wait for ever, a device it would read without
    end. What cannot be listed is for Borg to report. Raises RepositoryDamaged."""
    waiting = [os.fspath(folder)]
    while waiting:
        with suppress(OSError), os.scandir(waiting.pop()) as entries:
            for one in entries:
                if one.is_dir(follow_symlinks=False):
                    waiting.append(one.path)
                elif not one.is_file(follow_symlinks=False) and os.path.lexists(one.path):
                    raise RepositoryDamaged(
                        f"{one.path} is a link, a pipe or a device; a repository has only files and folders",
                        hint="find out who put it there, and remove it. If a file is missing then, restore from "
                        "another place and add a new one",
                    )


def _archive(one: dict[str, Any]) -> Archive:
    at = datetime.fromisoformat(one["start"]).replace(tzinfo=UTC)
    return Archive(name=str(one["name"]), id=str(one["id"]), at=at)


def _target(repository: Repository, archive: str) -> str:
    return f"{repository.address}::{_checked_name(archive)}"


def _checked_name(archive: str) -> str:
    # Borg would read braces as placeholders and a leading dash as an option.
    if not _ARCHIVE.fullmatch(archive):
        raise BadInput(f"{archive!r} is not a valid snapshot name")
    return archive


# Any: a border; the callers take out what they need and check it
def _parsed(raw: bytes, verb: Verb, repository: Repository) -> dict[str, Any]:
    try:
        return decode_json(raw, dict[str, Any])
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise _odd(verb, repository) from error


def _odd(verb: Verb, repository: Repository) -> BackupFailed:
    return BackupFailed(f"{repository.name}: Holdfast cannot read the output of borg {verb}")
