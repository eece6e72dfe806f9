"""Which of our errors is what Borg said: over values, for versions that say it differently."""

from __future__ import annotations

import json

import pytest

from holdfast.backup.borg.log import LogLine, Said, Verb, find_trouble, parse_line
from holdfast.errors import HoldfastError

ERROR = "error"


def line(msgid: str = "", message: str = "it says", level: str = ERROR) -> LogLine:
    return LogLine(type="log_message", levelname=level, msgid=msgid, message=message)


def code(said: Said, verb: Verb = Verb.CREATE) -> str:
    found = find_trouble(said, verb=verb, where="nas")
    assert isinstance(found, HoldfastError)
    assert found.hint
    assert found.message.startswith(f"nas: borg {verb}: ")
    return found.code


@pytest.mark.parametrize(
    ("rc", "msgid", "meant"),
    [
        (13, "Repository.DoesNotExist", "place-missing"),
        (18, "Repository.ParentPathDoesNotExist", "place-missing"),
        (10, "Repository.AlreadyExists", "place-taken"),
        (30, "Archive.AlreadyExists", "snapshot-exists"),
        (31, "Archive.DoesNotExist", "snapshot-not-found"),
        (52, "PassphraseWrong", "passphrase-refused"),
        (50, "NoPassphraseFailure", "passphrase-refused"),
        (62, "Cache.RepositoryAccessAborted", "repository-moved"),
        (64, "Cache.RepositoryReplay", "repository-rolled-back"),
        (73, "LockTimeout", "repository-locked"),
        (44, "RepoKeyNotFoundError", "repository-key-missing"),
        (81, "ConnectionClosedWithHint", "place-unreachable"),
        (83, "PathNotAllowed", "place-refused"),
        (90, "IntegrityError", "repository-damaged"),
        (14, "Repository.InsufficientFreeSpaceError", "place-full"),
    ],
)
def test_the_msgid_decides_and_the_exit_code_agrees(rc: int, msgid: str, meant: str) -> None:
    """1.2 says 2 for everything and has the msgid; a far end may lose the msgid and keep the rc."""
    assert code(Said(rc=rc, lines=(line(msgid),))) == meant
    assert code(Said(rc=2, lines=(line(msgid),))) == meant
    assert code(Said(rc=rc, lines=(line(),))) == meant


def test_a_warning_is_never_a_success() -> None:
    for rc in (1, 100, 102, 107):
        warned = Said(rc=rc, lines=(line("BackupFileNotFoundError", level="warning"),))
        assert code(warned) == "snapshot-incomplete"
        assert code(warned, Verb.EXPORT) == "snapshot-incomplete"
    assert code(Said(rc=1), Verb.CHECK) == "repository-damaged"
    assert code(Said(rc=1), Verb.DELETE) == "snapshot-not-found"
    assert find_trouble(Said(rc=0, lines=(line(),)), verb=Verb.LIST, where="nas") is None


def test_a_full_disk_and_signals() -> None:
    for message in ("OSError: [Errno 28] No space left on device", "Disk quota exceeded"):
        assert code(Said(rc=2, lines=(line(message=message),))) == "place-full"
        assert code(Said(rc=2, plain=(message,))) == "place-full"
    assert code(Said(rc=72, lines=(line("LockFailed", "lock (No space left on device)."),))) == ("place-full")
    assert code(Said(rc=143)) == code(Said(rc=-9)) == "backup-interrupted"
    assert code(Said(rc=2, lines=(line(message="never seen before"),))) == "backup-failed"


def test_the_message_is_the_first_error_and_says_how_many_more() -> None:
    said = Said(
        rc=90, dropped=7, lines=(line(message="care", level="warning"), line("IntegrityError", "bad\nmore"), line())
    )
    found = find_trouble(said, verb=Verb.EXPORT, where="nas")
    assert str(found) == "nas: borg export-tar: bad (exit code 90, 8 more lines)"


def test_lines_that_are_not_json_are_kept_as_text() -> None:
    assert parse_line(b"ssh: connect to host x port 22: Connection refused\n") == (
        "ssh: connect to host x port 22: Connection refused"
    )
    assert isinstance(parse_line(b"\xff\xfe"), str)
    assert isinstance(parse_line(b"[1, 2]"), str)
    raw = {"type": "log_message", "levelname": "ERROR", "message": "m", "msgid": "X", "new": [1]}
    assert parse_line(json.dumps(raw).encode()) == LogLine(
        type="log_message", levelname="ERROR", message="m", msgid="X"
    )
