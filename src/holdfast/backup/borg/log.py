"""What Borg said, and which of our errors that is.

Borg's exit codes differ between 1.2 and 1.4; the `msgid` of its JSON log lines does not. So the
msgid decides, the exit code is the second witness, and text is looked at only for the cases
that have neither: a full disk, and a place that cannot be written. An exit code that is not 0
is never a success: Borg calls a zero-filled file or a missing source a warning.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import msgspec

from holdfast.core.decoding import json_decoder
from holdfast.errors import (
    BackupFailed,
    BackupInterrupted,
    HoldfastError,
    PassphraseRefused,
    PlaceFull,
    PlaceMissing,
    PlaceRefused,
    PlaceTaken,
    PlaceUnreachable,
    RepositoryDamaged,
    RepositoryKeyMissing,
    RepositoryLocked,
    RepositoryMoved,
    RepositoryRolledBack,
    SnapshotExists,
    SnapshotIncomplete,
    SnapshotNotFound,
)

LINES_MAX = 50  # kept of one run: a damaged repository gives one line for each chunk
LINE_CHARS_MAX = 400
_RC_WARNING = 1
_RC_WARNINGS = range(100, 128)
_RC_SIGNALS = range(128, 192)
_QUIET = ("info", "debug")


class Verb(StrEnum):
    """What Borg was asked for."""

    INIT = "init"
    CREATE = "create"
    LIST = "list"
    EXPORT = "export-tar"
    CHECK = "check"
    DELETE = "delete"
    COMPACT = "compact"
    KEY_EXPORT = "key export"
    KEY_IMPORT = "key import"
    BREAK_LOCK = "break-lock"
    CONFIG = "config"


class LogLine(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the JSON log; fields that a kind lacks are empty."""

    type: str
    levelname: str = ""
    name: str = ""
    message: str = ""
    msgid: str = ""
    original_size: int = 0
    nfiles: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """The exit code and the first lines of a run."""

    rc: int  # negative: the signal that ended it
    lines: tuple[LogLine, ...] = ()
    dropped: int = 0  # lines beyond those that were kept
    plain: tuple[str, ...] = field(default=())  # lines that are no JSON: ssh, a shell, Python


_decode = json_decoder(LogLine).decode


def parse_line(raw: bytes) -> LogLine | str:
    """A line of the log; its bare text where it is not JSON."""
    try:
        return _decode(raw)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return raw.decode(errors="replace").strip()[:LINE_CHARS_MAX]


def find_trouble(said: Said, *, verb: Verb, where: str) -> HoldfastError | None:
    """The error that this run is, or None where it did what it was asked for."""
    if said.rc == 0:
        return None
    kind = _by_msgid(said.lines) or _by_rc(said.rc) or _by_text(said) or _fallback(said, verb)
    return kind(f"{where}: borg {verb}: {_summary(said)}")


Kind = type[HoldfastError]

_MSGIDS: dict[str, Kind] = {
    msgid: kind
    for kind, msgids in (
        (PlaceMissing, "Repository.DoesNotExist Repository.ParentPathDoesNotExist"),
        (PlaceTaken, "Repository.AlreadyExists Repository.PathAlreadyExists Repository.AtticRepository"),
        (
            RepositoryDamaged,
            "Repository.InvalidRepository Repository.InvalidRepositoryConfig Repository.CheckNeeded"
            " Repository.ObjectNotFound IntegrityError DecompressionError FileIntegrityError TAMInvalid"
            " ArchiveTAMInvalid TAMRequiredError ArchiveTAMRequiredError NoManifestError",
        ),
        (PlaceFull, "Repository.InsufficientFreeSpaceError Repository.StorageQuotaExceeded"),
        (PlaceRefused, "Repository.PathPermissionDenied PathNotAllowed"),
        (SnapshotExists, "Archive.AlreadyExists"),
        (SnapshotNotFound, "Archive.DoesNotExist"),
        (SnapshotIncomplete, "Archive.IncompatibleFilesystemEncodingError"),
        (PassphraseRefused, "PassphraseWrong PasscommandFailure NoPassphraseFailure PasswordRetriesExceeded"),
        (RepositoryKeyMissing, "RepoKeyNotFoundError KeyfileInvalidError"),
        (RepositoryMoved, "Cache.RepositoryAccessAborted Cache.CacheInitAbortedError"),
        (RepositoryRolledBack, "Cache.RepositoryReplay Cache.RepositoryIDNotUnique Cache.EncryptionMethodMismatch"),
        (RepositoryLocked, "LockTimeout LockError LockErrorT"),
        (
            PlaceUnreachable,
            "ConnectionClosed ConnectionClosedWithHint ConnectionBrokenWithHint UnexpectedRPCDataFormatFromServer",
        ),
    )
    for msgid in msgids.split()
}

_RCS: dict[int, Kind] = {
    rc: kind
    for kind, rcs in (
        (PlaceTaken, (10, 19)),
        (RepositoryDamaged, (12, 15, 16, 17, 26, 90, 91, 92, 95, 96, 97, 98, 99)),
        (PlaceMissing, (13, 18)),
        (PlaceFull, (14, 20)),
        (PlaceRefused, (21, 83)),
        (SnapshotExists, (30,)),
        (SnapshotNotFound, (31,)),
        (RepositoryKeyMissing, (40, 44)),
        (PassphraseRefused, (50, 51, 52, 53)),
        (RepositoryMoved, (60, 62)),
        (RepositoryRolledBack, (61, 63, 64)),
        (RepositoryLocked, (70, 71, 73)),
        (PlaceUnreachable, (80, 81, 86, 87)),
    )
    for rc in rcs
}

# Borg gives these neither a msgid nor an exit code of their own: the words of the system itself,
# in its untranslated form, because Borg runs with the C locale.
_LOST_SEGMENT = re.compile(r"No such file or directory: '[^']*/data/[0-9]+/[0-9]+'")
_TEXTS: tuple[tuple[str, Kind], ...] = (
    ("No space left on device", PlaceFull),
    ("Disk quota exceeded", PlaceFull),
    ("Read-only file system", PlaceRefused),
    ("Permission denied", PlaceRefused),
    ("Input/output error", RepositoryDamaged),
    ("Stale file handle", PlaceMissing),
    ("Failed to create/acquire the lock", PlaceRefused),  # LockFailed: the reason stands before
)


def _by_msgid(lines: Sequence[LogLine]) -> Kind | None:
    # The last is what ended the run; those before it may be steps on the way.
    return next((_MSGIDS[line.msgid] for line in reversed(lines) if line.msgid in _MSGIDS), None)


def _by_rc(rc: int) -> Kind | None:
    if rc < 0 or rc in _RC_SIGNALS:
        return BackupInterrupted
    return _RCS.get(rc)


def _by_text(said: Said) -> Kind | None:
    texts = [*(line.message for line in said.lines), *said.plain]
    if any(_LOST_SEGMENT.search(text) for text in texts):
        return RepositoryDamaged
    return next((kind for words, kind in _TEXTS if any(words in text for text in texts)), None)


def _fallback(said: Said, verb: Verb) -> Kind:
    if verb is Verb.CHECK and said.rc == _RC_WARNING:
        return RepositoryDamaged
    if verb is Verb.DELETE and said.rc == _RC_WARNING:
        return SnapshotNotFound
    if said.rc == _RC_WARNING or said.rc in _RC_WARNINGS:
        return SnapshotIncomplete
    return BackupFailed


def _summary(said: Said) -> str:
    """The lines that say why, short: errors before warnings before the rest."""
    for wanted in (("critical", "error"), ("warning",)):
        found = [
            line.message.strip().splitlines()[0][:LINE_CHARS_MAX]
            for line in said.lines
            if line.levelname.lower() in wanted and line.message.strip()
        ]
        if found:
            more = len(found) - 1 + said.dropped
            return f"{found[0]} (exit code {said.rc}{f', {more} more lines' if more else ''})"
    loud = [text for text in said.plain if text]
    return f"{loud[-1]} (exit code {said.rc})" if loud else f"exit code {said.rc}"


def is_talk(line: LogLine) -> bool:
    """Nothing that explains a failure: not kept."""
    return line.type != "log_message" or line.levelname.lower() in _QUIET
