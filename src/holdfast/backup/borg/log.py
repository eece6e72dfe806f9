"""What Borg said, and which of our errors that is.

Borg's exit codes differ between 1.2 and 1.4; the `msgid` of its JSON log lines does not. So the
msgid decides, the exit code is the second witness, and text is looked at only for the cases
that have neither: a full disk, and a place that cannot be written. An exit code that is not 0
is never a success: Borg calls a zero-filled file or a missing source a warning.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import msgspec

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


class Line(msgspec.Struct, frozen=True, kw_only=True):
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
    lines: tuple[Line, ...] = ()
    dropped: int = 0  # lines beyond those that were kept
    plain: tuple[str, ...] = field(default=())  # lines that are no JSON: ssh, a shell, Python


_decode = msgspec.json.Decoder(Line).decode


def parse_line(raw: bytes) -> Line | str:
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
    "Repository.DoesNotExist": PlaceMissing,
    "Repository.ParentPathDoesNotExist": PlaceMissing,
    "Repository.AlreadyExists": PlaceTaken,
    "Repository.PathAlreadyExists": PlaceTaken,
    "Repository.AtticRepository": PlaceTaken,
    "Repository.InvalidRepository": RepositoryDamaged,
    "Repository.InvalidRepositoryConfig": RepositoryDamaged,
    "Repository.CheckNeeded": RepositoryDamaged,
    "Repository.ObjectNotFound": RepositoryDamaged,
    "Repository.InsufficientFreeSpaceError": PlaceFull,
    "Repository.StorageQuotaExceeded": PlaceFull,
    "Repository.PathPermissionDenied": PlaceRefused,
    "Archive.AlreadyExists": SnapshotExists,
    "Archive.DoesNotExist": SnapshotNotFound,
    "Archive.IncompatibleFilesystemEncodingError": SnapshotIncomplete,
    "PassphraseWrong": PassphraseRefused,
    "PasscommandFailure": PassphraseRefused,
    "NoPassphraseFailure": PassphraseRefused,
    "PasswordRetriesExceeded": PassphraseRefused,
    "RepoKeyNotFoundError": RepositoryKeyMissing,
    "KeyfileInvalidError": RepositoryKeyMissing,
    "Cache.RepositoryAccessAborted": RepositoryMoved,
    "Cache.CacheInitAbortedError": RepositoryMoved,
    "Cache.RepositoryReplay": RepositoryRolledBack,
    "Cache.RepositoryIDNotUnique": RepositoryRolledBack,
    "Cache.EncryptionMethodMismatch": RepositoryRolledBack,
    "LockTimeout": RepositoryLocked,
    "LockError": RepositoryLocked,
    "LockErrorT": RepositoryLocked,
    "ConnectionClosed": PlaceUnreachable,
    "ConnectionClosedWithHint": PlaceUnreachable,
    "ConnectionBrokenWithHint": PlaceUnreachable,
    "UnexpectedRPCDataFormatFromServer": PlaceUnreachable,
    "PathNotAllowed": PlaceRefused,
    "IntegrityError": RepositoryDamaged,
    "DecompressionError": RepositoryDamaged,
    "FileIntegrityError": RepositoryDamaged,
    "TAMInvalid": RepositoryDamaged,
    "ArchiveTAMInvalid": RepositoryDamaged,
    "TAMRequiredError": RepositoryDamaged,
    "ArchiveTAMRequiredError": RepositoryDamaged,
}

_RCS: dict[int, Kind] = {
    10: PlaceTaken,
    12: RepositoryDamaged,
    13: PlaceMissing,
    14: PlaceFull,
    15: RepositoryDamaged,
    16: RepositoryDamaged,
    17: RepositoryDamaged,
    18: PlaceMissing,
    19: PlaceTaken,
    20: PlaceFull,
    21: PlaceRefused,
    30: SnapshotExists,
    31: SnapshotNotFound,
    40: RepositoryKeyMissing,
    44: RepositoryKeyMissing,
    50: PassphraseRefused,
    51: PassphraseRefused,
    52: PassphraseRefused,
    53: PassphraseRefused,
    60: RepositoryMoved,
    61: RepositoryRolledBack,
    62: RepositoryMoved,
    63: RepositoryRolledBack,
    64: RepositoryRolledBack,
    70: RepositoryLocked,
    71: RepositoryLocked,
    73: RepositoryLocked,
    80: PlaceUnreachable,
    81: PlaceUnreachable,
    83: PlaceRefused,
    86: PlaceUnreachable,
    87: PlaceUnreachable,
    90: RepositoryDamaged,
    91: RepositoryDamaged,
    92: RepositoryDamaged,
    95: RepositoryDamaged,
    96: RepositoryDamaged,
    97: RepositoryDamaged,
    98: RepositoryDamaged,
    99: RepositoryDamaged,
}

# Borg gives these neither a msgid nor an exit code of their own: the words of the system itself,
# in its untranslated form, because Borg runs with the C locale.
_TEXTS: tuple[tuple[str, Kind], ...] = (
    ("No space left on device", PlaceFull),
    ("Disk quota exceeded", PlaceFull),
    ("Read-only file system", PlaceRefused),
    ("Permission denied", PlaceRefused),
    ("Input/output error", RepositoryDamaged),
    ("Stale file handle", PlaceMissing),
    ("Failed to create/acquire the lock", PlaceRefused),  # LockFailed: the reason stands before
)


def _by_msgid(lines: Sequence[Line]) -> Kind | None:
    # The last is what ended the run; those before it may be steps on the way.
    return next((_MSGIDS[line.msgid] for line in reversed(lines) if line.msgid in _MSGIDS), None)


def _by_rc(rc: int) -> Kind | None:
    if rc < 0 or rc in _RC_SIGNALS:
        return BackupInterrupted
    return _RCS.get(rc)


def _by_text(said: Said) -> Kind | None:
    texts = [*(line.message for line in said.lines), *said.plain]
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


def is_talk(line: Line) -> bool:
    """Nothing that explains a failure: not kept."""
    return line.type != "log_message" or line.levelname.lower() in _QUIET
