"""One run of Borg as a process of its own.

True of every run: the arguments are a list, no shell reads them; standard input is empty; the
environment holds what is written here and nothing of the caller's; the passphrase goes through a
pipe that Borg reads once, so it is in no argument, no environment and no file; there is no
terminal, so neither Borg nor ssh can ask a person and wait for ever; no run lasts longer
than it was given. Borg and what it starts (ssh) are one process group: when the run is cancelled
or too slow the group gets SIGTERM, on which Borg gives up its lock and leaves no half archive,
and SIGKILL a little later, or at once where even the waiting is cancelled. What is left of the
group when Borg has ended, however it ended, gets SIGKILL: an ssh that hangs outlives no run. If
this process itself is killed, Borg ends or finishes by itself; an archive made so is named by no
head and counts for nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncGenerator, Generator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from holdfast.backup.borg.log import LINES_MAX, LogLine, Said, Verb, find_trouble, is_talk, parse_line
from holdfast.backup.engine import SHORT_S, Amount, OnAmount, Repository
from holdfast.errors import BackupInterrupted, EngineMissing, HoldfastError, TooLarge
from holdfast.identity.records.secret_bytes import SecretBytes

TERM_GRACE_S = 10.0
LINE_BYTES_MAX = 1024 * 1024
OUTPUT_BYTES_MAX = 64 * 1024 * 1024
PIECE_BYTES = 256 * 1024
_KEPT_VARIABLES = ("PATH", "HOME", "TMPDIR", "SSH_AUTH_SOCK")


def environment(*, base: Path, rescue: bool, rsh: str = "", given: Mapping[str, str] | None = None) -> dict[str, str]:
    """All that a run gets. `rescue`: for restores, on a machine that never saw the repository."""
    source = os.environ if given is None else given
    kept = {name: source[name] for name in _KEPT_VARIABLES if name in source}
    kept.setdefault("PATH", os.defpath)
    return {
        **kept,
        "LC_ALL": "C.UTF-8",
        "TZ": "UTC",
        "BORG_BASE_DIR": str(base),
        "BORG_EXIT_CODES": "modern",
        # A repository that moved is news, except to a restore, which has seen none before.
        "BORG_RELOCATED_REPO_ACCESS_IS_OK": "yes" if rescue else "no",
        "BORG_UNKNOWN_UNENCRYPTED_REPO_ACCESS_IS_OK": "no",
        "BORG_CHECK_I_KNOW_WHAT_I_AM_DOING": "NO",
        "BORG_DELETE_I_KNOW_WHAT_I_AM_DOING": "NO",
        **({"BORG_RSH": rsh} if rsh else {}),
    }


@dataclass(frozen=True, slots=True)
class Call:
    """One run of Borg, as a verb asks for it."""

    verb: Verb
    repository: Repository
    arguments: Sequence[str]
    rescue: bool = False
    cwd: Path | None = None
    on_progress: OnAmount | None = None
    timeout_s: float = SHORT_S
    late: type[HoldfastError] = BackupInterrupted


class Run:
    """A running Borg: its output as pieces of bytes, and at the end what it said."""

    def __init__(self, process: asyncio.subprocess.Process, call: Call) -> None:
        self._process = process
        self._verb = call.verb
        self._where = call.repository.name
        self._log = asyncio.create_task(_read_log(process, call.on_progress))
        self._over = False

    @property
    def pid(self) -> int:
        return self._process.pid

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        """Standard output to its end. Only `wait` says whether it was all of it."""
        assert self._process.stdout is not None
        while piece := await self._process.stdout.read(PIECE_BYTES):
            yield piece

    async def read(self) -> bytes:
        """All of standard output, once the run has done what it was asked for."""
        parts: list[bytes] = []
        size = 0
        async for piece in self.pieces():
            size += len(piece)
            if size > OUTPUT_BYTES_MAX:
                raise TooLarge(f"{self._where}: borg {self._verb} wrote more than {OUTPUT_BYTES_MAX:,} bytes of output")
            parts.append(piece)
        await self.wait()
        return b"".join(parts)

    async def wait(self) -> Said:
        """The end of the run. Raises what `find_trouble` finds."""
        said = replace(await self._log, rc=await self._process.wait())
        self._kill_rest()
        trouble = find_trouble(said, verb=self._verb, where=self._where)
        if trouble is not None:
            raise trouble
        return said

    def _kill_rest(self) -> None:
        """What Borg left of its group. Once, and soon: later the number may be somebody else's."""
        if not self._over:
            self._over = True
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)

    async def end(self) -> None:
        """Whatever became of it: no process and no task of ours is left."""
        try:
            if self._process.returncode is None:
                await _stop(self._process)
        finally:
            self._kill_rest()
            self._log.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._log


@asynccontextmanager
async def running(
    program: Path, call: Call, *, options: Sequence[str], env: Mapping[str, str]
) -> AsyncGenerator[Run, None]:
    """Start Borg and give the run; on leaving it has ended, of itself or by us.
    Raises EngineMissing where the program is not there; BackupInterrupted, or `late`, where the time was over."""
    cwd, where, timeout_s = call.cwd, call.repository.name, call.timeout_s
    with _secret_pipe(call.repository.passphrase) as (fds, names):
        try:
            process = await asyncio.create_subprocess_exec(
                program,
                "--log-json",
                *call.verb.split(),
                *options,
                *call.arguments,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env={**env, **names},
                cwd=cwd,
                pass_fds=fds,
                start_new_session=True,
                limit=LINE_BYTES_MAX,
            )
        except (FileNotFoundError, PermissionError) as error:
            if cwd is not None and not cwd.is_dir():
                raise
            raise EngineMissing(f"cannot run {program}: {error.strerror}") from error
    run = Run(process, call)
    limit = asyncio.timeout(timeout_s)
    try:
        async with limit:
            yield run
    except TimeoutError:
        if not limit.expired():
            raise
        if call.late is not BackupInterrupted:
            raise call.late(f"{where}: no answer within {timeout_s:g} s") from None
        raise BackupInterrupted(
            f"{where}: Holdfast stopped borg {call.verb}, because it took longer than {timeout_s:g} s",
            hint="check the disk or network of this place, then try again",
        ) from None
    finally:
        await asyncio.shield(run.end())


@contextlib.contextmanager
def _secret_pipe(passphrase: SecretBytes) -> Generator[tuple[tuple[int, ...], dict[str, str]], None, None]:
    """The reading end for Borg and the variable that names it. A passphrase fits into a pipe."""
    reading, writing = os.pipe()
    try:
        try:
            os.write(writing, passphrase.reveal() + b"\n")
        finally:
            os.close(writing)
        yield (reading,), {"BORG_PASSPHRASE_FD": str(reading)}
    finally:
        os.close(reading)


async def _read_log(process: asyncio.subprocess.Process, on_progress: OnAmount | None) -> Said:
    lines: list[LogLine] = []
    plain: list[str] = []
    dropped = 0
    assert process.stderr is not None
    while True:
        try:
            raw = await process.stderr.readline()
        except ValueError:  # longer than any line that explains something
            dropped += 1
            continue
        if not raw:
            return Said(rc=0, lines=tuple(lines), plain=tuple(plain), dropped=dropped)
        line = parse_line(raw)
        if isinstance(line, LogLine):
            amount = amount_of(line)
            if amount is not None and on_progress is not None:
                on_progress(amount)
            if is_talk(line):
                continue
        if len(lines) + len(plain) >= LINES_MAX:
            dropped += 1
        elif isinstance(line, LogLine):
            lines.append(line)
        else:
            plain.append(line)


def amount_of(line: LogLine) -> Amount | None:
    if line.type != "archive_progress":
        return None
    return Amount(bytes=line.original_size, files=line.nfiles)


async def _stop(process: asyncio.subprocess.Process) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(TERM_GRACE_S):
                # What nobody reads any more must not hold it back from ending.
                assert process.stdout is not None
                while await process.stdout.read(PIECE_BYTES):
                    pass
                await process.wait()
                return
