"""A staging folder is the agent's folder at one moment, and its manifest says exactly that."""

from __future__ import annotations

import asyncio
import hashlib
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import apsw
import pytest

from holdfast.app.binder import open_journal
from holdfast.backup.archive.manifest import EntryKind, ManifestEntry, ManifestReader, SnapshotNote
from holdfast.backup.snapshot import databases
from holdfast.backup.snapshot import staging as module
from holdfast.backup.snapshot.databases import copy_database
from holdfast.backup.snapshot.staging import Staged, Subject, stage
from holdfast.core.journal_address import JournalAddress, file_at
from holdfast.errors import BackupDamaged, SnapshotFailed
from holdfast.host.private_files import ensure_private_folder
from holdfast.host.sqlite import Db, open_alone, open_db
from holdfast.host.tree import FileMark, may_hide_a_change
from holdfast.host.tree import FoundFile as Seen
from holdfast.journal.admin import JournalAdmin
from holdfast.journal.bind import journal_at


def staged(folder: Path, staging: Path, *, journal: Path | None = None) -> Staged:
    ensure_private_folder(staging)
    address = None if journal is None else file_at(journal)
    subject = Subject(folder=folder, journal=address, id="hf1x", name="ada", incarnation=3, seq=7, at=1, holdfast="0")
    return stage(subject, staging)


def entries(staging: Path) -> dict[str, ManifestEntry]:
    with open(staging / "MANIFEST.json", "rb") as file:
        return {one.path: one for one in ManifestReader(file).entries()}


def notes(made: Staged) -> dict[str, str]:
    return {note.path: note.text for note in made.notes}


def test_files_modes_and_digests_are_those_of_the_agents_folder(agent: Path, tmp_path: Path) -> None:
    made = staged(agent, tmp_path / "s")
    found = entries(made.folder)
    assert list(found) == ["MEMORY.md", "empty", "memory", "memory/2026-11-15.md", "tool.sh"]
    raw = (agent / "MEMORY.md").read_bytes()
    assert found["MEMORY.md"].sha256 == hashlib.sha256(raw).hexdigest()
    assert found["tool.sh"].mode == 0o755
    assert found["empty"].mode == 0o750
    assert (made.folder / "state" / "MEMORY.md").read_bytes() == raw
    assert (made.files, made.bytes) == (3, sum(one.size for one in found.values() if one.size > 0))
    assert made.about.e == 3
    assert made.about.journal is None


def test_a_staged_file_is_nobody_elses(agent: Path, tmp_path: Path) -> None:
    """No hard link: what is written into the original later is not in the snapshot."""
    made = staged(agent, tmp_path / "s")
    with open(agent / "MEMORY.md", "r+b") as file:
        file.write(b"XXXX")
    assert not (made.folder / "state" / "MEMORY.md").read_bytes().startswith(b"XXXX")
    assert (made.folder / "state" / "MEMORY.md").stat().st_nlink == 1


def test_what_is_left_out_is_noted(agent: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("instance", ".ssh", "node_modules", "scratch"):
        (agent / name).mkdir()
        (agent / name / "x").write_text("x")
    (agent / "keys.json").write_text("{}")
    (agent / ".env").write_text("TOKEN=x")
    os.mkfifo(agent / "pipe")
    (agent / "deep").mkdir()
    deep = agent / "deep" / "/".join("d" * 40)
    deep.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as listening:
        monkeypatch.chdir(agent)
        listening.bind("sock")
    made = staged(agent, tmp_path / "s")
    told = notes(made)
    for name in ("instance", ".ssh", "node_modules", "scratch", "keys.json", ".env", "pipe", "sock"):
        assert told[name].startswith("left out"), name
        assert not (made.folder / "state" / name).exists()
    assert sum("deeper than" in text for text in told.values()) == 1
    assert set(entries(made.folder)).isdisjoint(told)


def test_links_are_recorded_and_not_followed(agent: Path, tmp_path: Path) -> None:
    (agent / "link").symlink_to("/etc/passwd")
    made = staged(agent, tmp_path / "s")
    found = entries(made.folder)["link"]
    assert (found.kind, found.target) == (EntryKind.LINK, "/etc/passwd")
    assert not os.path.lexists(made.folder / "state" / "link")
    assert "not covered" in notes(made)["link"]


def test_a_file_that_changes_while_it_is_copied_is_copied_again(
    agent: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy = agent / "busy.log"
    busy.write_bytes(b"0" * 100)
    time.sleep(0.05)
    real, left = module._pour, [2]

    def pour(fd: int, out: int | None, *, bytes_max: int, on_piece: Callable[[int], None]) -> tuple[int, str]:
        done = real(fd, out, bytes_max=bytes_max, on_piece=on_piece)
        if bytes_max >= 100 and left[0]:
            left[0] -= 1
            with open(busy, "ab") as file:
                file.write(b"more")
        return done

    monkeypatch.setattr(module, "_pour", pour)
    made = staged(agent, tmp_path / "s")
    assert (made.folder / "state" / "busy.log").read_bytes() == busy.read_bytes()
    assert "busy.log" not in notes(made)


def test_a_file_that_is_gone_before_its_second_copy_leaves_nothing_staged(
    agent: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An atomic save's temporary file: what no manifest names would make every restore refuse."""
    busy = agent / "busy.log"
    busy.write_bytes(b"0" * 100)
    real = module._pour

    def pour(fd: int, out: int | None, *, bytes_max: int, on_piece: Callable[[int], None]) -> tuple[int, str]:
        done = real(fd, out, bytes_max=bytes_max, on_piece=on_piece)
        if bytes_max >= 100:
            os.utime(busy)
            busy.unlink()
        return done

    monkeypatch.setattr(module, "_pour", pour)
    made = staged(agent, tmp_path / "s")
    assert "busy.log" not in entries(made.folder)
    assert not (made.folder / "state" / "busy.log").exists()


def test_a_file_that_never_rests_is_kept_and_noted(
    agent: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy = agent / "busy.log"
    busy.write_bytes(b"0" * 100)
    real = module._pour

    def pour(fd: int, out: int | None, *, bytes_max: int, on_piece: Callable[[int], None]) -> tuple[int, str]:
        done = real(fd, out, bytes_max=bytes_max, on_piece=on_piece)
        if bytes_max >= 100:
            with open(busy, "ab") as file:
                file.write(b"more")
        return done

    monkeypatch.setattr(module, "_pour", pour)
    made = staged(agent, tmp_path / "s")
    kept = (made.folder / "state" / "busy.log").read_bytes()
    assert busy.read_bytes().startswith(kept)
    assert entries(made.folder)["busy.log"].sha256 == hashlib.sha256(kept).hexdigest()
    assert "changed each of" in notes(made)["busy.log"]


def test_a_change_in_the_same_tick_is_noticed(agent: Path, tmp_path: Path) -> None:
    """A file's times are as coarse as a tick: one written just now is looked at again later."""
    (agent / "fresh").write_bytes(b"x")
    began = time.monotonic()
    staged(agent, tmp_path / "s")
    assert time.monotonic() - began >= 0.02


def test_a_change_that_no_time_shows_is_found_by_a_second_copy(
    agent: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file system whose times are too coarse: two copies of one state must be equal."""
    fresh = agent / "fresh"
    fresh.write_bytes(b"a" * 100)
    real_pour, real_seen, first = module._pour, module.seen, [True]
    still = time.time_ns()

    def pour(fd: int, out: int | None, *, bytes_max: int, on_piece: Callable[[int], None]) -> tuple[int, str]:
        done = real_pour(fd, out, bytes_max=bytes_max, on_piece=on_piece)
        if bytes_max == 100 and first:
            first.clear()
            fresh.write_bytes(b"b" * 100)
            os.utime(fresh, ns=(still, still))
        return done

    def seen(path: str, status: os.stat_result) -> Seen:
        found = real_seen(path, status)
        return found._replace(mark=found.mark._replace(changed_ns=still, status_ns=still))

    def always(_mark: FileMark, *, began_ns: int, ended_ns: int) -> bool:
        return began_ns <= ended_ns

    os.utime(fresh, ns=(still, still))
    monkeypatch.setattr(module, "_pour", pour)
    monkeypatch.setattr(module, "seen", seen)
    monkeypatch.setattr(module, "may_hide_a_change", always)
    made = staged(agent, tmp_path / "s")
    assert (made.folder / "state" / "fresh").read_bytes() == b"b" * 100
    assert "fresh" not in notes(made)


SECOND = 10**9
BEGAN, ENDED = 1_700_000_000 * SECOND + 5, 1_700_000_003 * SECOND + 5


@pytest.mark.parametrize(
    ("status_ns", "hides"),
    [
        (BEGAN - SECOND, False),  # at rest for long
        (BEGAN - 10_000_000, True),  # in the tick in which we began
        (BEGAN + SECOND, True),  # meanwhile; or from before a clock was set back to just now
        (ENDED + 10_000_000, True),
        (ENDED + 3600 * SECOND, False),  # of before a clock was set back: a write is not then
        (1_699_999_999 * SECOND, True),  # a file system that keeps whole seconds
        (1_699_999_990 * SECOND, False),
    ],
)
def test_only_a_time_of_about_now_can_hide_a_change(status_ns: int, hides: bool) -> None:
    ahead = FileMark(1, 1, 1, BEGAN + 10**18, status_ns)  # what a program sets hides nothing
    assert may_hide_a_change(ahead, began_ns=BEGAN, ended_ns=ENDED) is hides
    assert may_hide_a_change(ahead, began_ns=ENDED, ended_ns=BEGAN) is hides


def test_a_time_in_the_future_is_no_change(agent: Path, tmp_path: Path) -> None:
    ahead = time.time() + 200 * 86_400
    os.utime(agent / "MEMORY.md", (ahead, ahead))
    made = staged(agent, tmp_path / "s")
    assert notes(made) == {}
    assert entries(made.folder)["MEMORY.md"].mtime_us // 10**6 == int(ahead)


def test_a_clock_that_was_set_back_makes_no_file_a_changing_one(
    agent: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = time.time_ns
    monkeypatch.setattr(module.time, "time_ns", lambda: real() - 86_400 * 10**9)
    made = staged(agent, tmp_path / "s")
    assert notes(made) == {}


def test_times_of_files_and_folders_are_kept_as_far_as_they_can_be(agent: Path, tmp_path: Path) -> None:
    os.utime(agent / "MEMORY.md", ns=(0, 1_700_000_000_123_456_789))
    os.utime(agent / "tool.sh", (-5, -5))
    os.utime(agent / "memory", (1_600_000_000, 1_600_000_000))
    made = staged(agent, tmp_path / "s")
    found = entries(made.folder)
    assert found["MEMORY.md"].mtime_us == 1_700_000_000_123_456
    assert found["tool.sh"].mtime_us == 0
    assert found["memory"].mtime_us == 1_600_000_000 * 10**6
    for path, entry in found.items():
        copied = (made.folder / "state" / path).stat()
        assert copied.st_mtime_ns == entry.mtime_us * 1000, path
    assert made.about.mode == 0o700


def test_bits_beyond_the_nine_are_not_kept(agent: Path, tmp_path: Path) -> None:
    (agent / "tool.sh").chmod(0o4755)
    made = staged(agent, tmp_path / "s")
    assert entries(made.folder)["tool.sh"].mode == 0o755
    assert "4755" in notes(made)["tool.sh"]
    assert (made.folder / "state" / "tool.sh").stat().st_mode & 0o7777 == 0o755


def live(path: Path) -> Db:
    """A database in use: most of its rows are in the log only."""
    db = open_db(str(path), flags=apsw.SQLITE_OPEN_READWRITE | apsw.SQLITE_OPEN_CREATE)
    db.pragma("journal_mode", "wal")
    db.pragma("wal_autocheckpoint", 0)
    db.execute("CREATE TABLE t (n INTEGER PRIMARY KEY, x)")
    db.execute("BEGIN")
    db.executemany("INSERT INTO t (x) VALUES (?)", [(os.urandom(100),) for _ in range(500)])
    db.execute("COMMIT")
    return db


def test_a_live_database_is_copied_with_what_is_in_its_log(agent: Path, tmp_path: Path) -> None:
    db = live(agent / "facts.db")
    made = staged(agent, tmp_path / "s")
    copy = made.folder / "state" / "facts.db"
    found = open_alone(copy)
    assert found.execute("SELECT count(*) FROM t").fetchall() == [(500,)]
    found.close()
    assert entries(made.folder)["facts.db"].kind is EntryKind.DATABASE
    beside = [path.name for path in copy.parent.iterdir() if path.name.startswith("facts.db-")]
    assert beside == []
    db.close()


def test_a_database_is_copied_while_another_thread_writes(agent: Path, tmp_path: Path) -> None:
    """Each copy has a prefix of the rows, and no transaction by half: rows come in pairs."""
    db = live(agent / "facts.db")
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            db.execute("BEGIN; INSERT INTO t (x) VALUES (1); INSERT INTO t (x) VALUES (2); COMMIT")

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for number in range(20):
            copy = tmp_path / f"copy{number}"
            copy.touch(0o600)
            copy_database(agent / "facts.db", copy)
            found = open_alone(copy)
            ((count, highest),) = found.execute("SELECT count(*), max(n) FROM t").fetchall()
            found.close()
            assert count == highest
            assert count % 2 == 0
    finally:
        stop.set()
        writer.join()
        db.close()


def test_a_damaged_database_stops_the_snapshot(agent: Path, tmp_path: Path) -> None:
    live(agent / "facts.db").close()
    raw = bytearray((agent / "facts.db").read_bytes())
    raw[8192:12288] = bytes(4096)
    (agent / "facts.db").write_bytes(raw)
    with pytest.raises(SnapshotFailed, match=r"facts\.db"):
        staged(agent, tmp_path / "s")


def test_every_changed_byte_of_a_manifest_is_noticed(agent: Path, tmp_path: Path) -> None:
    """By its form, by its sums, or in the end by its digest."""
    made = staged(agent, tmp_path / "s")
    raw = (made.folder / "MANIFEST.json").read_bytes()
    path = tmp_path / "changed"
    seen = 0
    for at in range(len(raw)):
        path.write_bytes(raw[:at] + bytes((raw[at] ^ 1,)) + raw[at + 1 :])
        with open(path, "rb") as file:
            try:
                reader = ManifestReader(file)
                list(reader.entries())
            except BackupDamaged:
                seen += 1
                continue
            assert reader.digest != made.manifest, at
    assert seen > len(raw) // 3


@pytest.mark.parametrize(
    "line",
    [
        b'{"kind":"file","mode":384,"path":"../x","sha256":"%s","size":1}',
        b'{"kind":"file","mode":384,"path":"/x","sha256":"%s","size":1}',
        b'{"kind":"file","mode":384,"path":"a//b","sha256":"%s","size":1}',
        b'{"kind":"file","mode":384,"path":"a/b","sha256":"%s","size":1}',
        b'{"kind":"file","mode":2541,"path":"a","sha256":"%s","size":1}',
        b'{"kind":"file","mode":384,"path":"a","sha256":"%s","size":-2}',
        b'{"kind":"file","mode":384,"path":"a","sha256":"%s"}',
        b'{"kind":"file","mode":384,"path":"a","sha256":"xx","size":1}',
        b'{"kind":"file","mode":384, "path":"a","sha256":"%s","size":1}',
        b'{"kind":"file","mode":384,"path":"a","sha256":"%s","size":1,"target":""}',
        b'{"kind":"file","mode":384,"more":1,"path":"a","sha256":"%s","size":1}',
        b'{"kind":"link","mode":384,"path":"a","target":"b"}',
        b'{"kind":"link","path":"a"}',
        b'{"kind":"folder","mode":448,"path":"a","size":1}',
        b'{"kind":"pipe","mode":448,"path":"a"}',
        b'{"kind":"folder","mode":448,"path":"."}',
        b'{"kind":"folder","mode":448,"path":"a\\u0000"}',
        b'{"kind":"folder","mode":448,"path":"\\u0061"}',
    ],
)
def test_an_entry_that_no_writer_writes_is_refused(line: bytes, tmp_path: Path) -> None:
    about = (
        b'{"about":{"at":1,"e":1,"format":1,"id":"x","made":{"engine":"","holdfast":"0"},'
        b'"name":"a","seq":1},"files":[\n'
    )
    path = tmp_path / "m"
    path.write_bytes(about + line.replace(b"%s", b"a" * 64) + b'\n],"notes":[\n],"sums":{}}\n')
    with open(path, "rb") as file, pytest.raises(BackupDamaged, match="manifest"):
        list(ManifestReader(file).entries())


def test_order_and_repetition_are_checked(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "x").write_text("x")
    (tmp_path / "b.txt").write_text("x")
    made = staged(tmp_path, tmp_path.parent / f"{tmp_path.name}-s")
    raw = (made.folder / "MANIFEST.json").read_bytes()
    lines = raw.split(b"\n")
    assert [b'"path":"b"' in lines[1], b"b/x" in lines[2], b"b.txt" in lines[3]] == [True] * 3
    for wrong in ((0, 2, 1, 3), (0, 1, 1, 2, 3), (0, 2, 3), (0, 1, 3, 2)):
        text = b"\n".join([*(lines[at].rstrip(b",") + b"," if at else lines[at] for at in wrong)])
        path = tmp_path / "m"
        path.write_bytes(text.rstrip(b",") + b"\n" + b"\n".join(lines[4:]))
        with open(path, "rb") as file, pytest.raises(BackupDamaged):
            list(ManifestReader(file).entries())


def test_notes_are_kept_in_the_manifest(agent: Path, tmp_path: Path) -> None:
    (agent / ".env").write_text("TOKEN=x")
    made = staged(agent, tmp_path / "s")
    with open(made.folder / "MANIFEST.json", "rb") as file:
        reader = ManifestReader(file)
        list(reader.entries())
    assert reader.notes == made.notes
    assert reader.notes[0] == SnapshotNote(path=".env", text=notes(made)[".env"])
    assert reader.digest == made.manifest


def test_thousands_of_files_are_staged_in_little_memory(tmp_path: Path) -> None:
    """A tenth of the promise; `python -m holdfast_proofs.backup_lab.many 100000` does it all."""
    done = subprocess.run(
        [sys.executable, "-m", "holdfast_proofs.backup_lab.many", "3000", str(tmp_path / "x")],
        capture_output=True,
        text=True,
        check=True,
    )
    files, grown_mib = done.stdout.split()[:2]
    assert int(files) == 3000
    assert float(grown_mib) < 12


def again(folder: Path, staging: Path, *, boot: str = "one") -> tuple[Staged, set[str]]:
    """A further snapshot into a folder that is kept, and which files were read for it."""
    ensure_private_folder(staging)
    read: set[str] = set()
    pour = module._Stage._copied

    def copied(self: module._Stage, fd: int, path: str, *, fresh: bool):
        read.add(path)
        return pour(self, fd, path, fresh=fresh)

    subject = Subject(folder=folder, journal=None, id="hf1x", name="ada", incarnation=3, seq=7, at=1, holdfast="0")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module._Stage, "_copied", copied)
        return stage(subject, staging, boot=boot), read


def fresh(folder: Path, tmp_path: Path) -> tuple[dict[str, ManifestEntry], dict[str, bytes]]:
    """What a first snapshot of the folder as it is now would be."""
    made = staged(folder, tmp_path / f"fresh-{os.urandom(4).hex()}")
    return entries(made.folder), contents(made.folder)


def contents(staging: Path) -> dict[str, bytes]:
    found = sorted((staging / "state").rglob("*"))
    return {str(path.relative_to(staging)): path.read_bytes() if path.is_file() else b"folder" for path in found}


def test_an_unchanged_file_is_neither_copied_nor_hashed_again(agent: Path, tmp_path: Path) -> None:
    time.sleep(0.1)  # the times of what the fixture made lie behind
    _, first = again(agent, tmp_path / "s")
    assert first == {"MEMORY.md", "memory/2026-11-15.md", "tool.sh"}
    before = os.lstat(tmp_path / "s" / "state" / "MEMORY.md")
    made, second = again(agent, tmp_path / "s")
    assert second == set()
    assert os.lstat(tmp_path / "s" / "state" / "MEMORY.md") == before, "for Borg it is the same file"
    assert (entries(made.folder), contents(made.folder)) == fresh(agent, tmp_path)
    (agent / "MEMORY.md").write_text("changed\n")
    made, third = again(agent, tmp_path / "s")
    assert third == {"MEMORY.md"}
    assert (entries(made.folder), contents(made.folder)) == fresh(agent, tmp_path)


def test_the_work_for_unchanged_files_is_a_look_at_each(
    agent: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 40 files one was changed: one is opened to be judged, and once more to be copied."""
    for number in range(40):
        (agent / "memory" / f"{number}.txt").write_text("x")
    time.sleep(0.1)
    again(agent, tmp_path / "s")
    (agent / "memory" / "7.txt").write_text("y")
    time.sleep(0.1)
    opened: list[str] = []
    real = os.open

    def counted(path: str, flags: int, *more: Any, **named: Any) -> int:
        if not flags & os.O_DIRECTORY and str(path).endswith((".txt", ".md", ".sh")):
            opened.append(os.path.basename(path))
        return real(path, flags, *more, **named)

    monkeypatch.setattr(os, "open", counted)
    made, read = again(agent, tmp_path / "s")
    monkeypatch.undo()
    assert read == {"memory/7.txt"}
    assert set(opened) == {"7.txt"}
    assert (entries(made.folder), contents(made.folder)) == fresh(agent, tmp_path)


@pytest.mark.parametrize("head", [b"SQLite format 3\0", b"-----BEGIN PRIVATE KEY-----"])
def test_a_known_file_that_changes_its_nature_is_judged_again(agent: Path, tmp_path: Path, head: bytes) -> None:
    time.sleep(0.1)
    again(agent, tmp_path / "s")
    (agent / "MEMORY.md").unlink()
    if head.startswith(b"SQLite"):
        live(agent / "MEMORY.md").close()
    else:
        (agent / "MEMORY.md").write_bytes(head)
    made, _ = again(agent, tmp_path / "s")
    assert (entries(made.folder), contents(made.folder)) == fresh(agent, tmp_path)
    found = entries(made.folder).get("MEMORY.md")
    assert (found and found.kind) == (EntryKind.DATABASE if head.startswith(b"SQLite") else None)


@pytest.mark.parametrize("stray", ["other/file", "state/other", "state/memory/other", "state/link", "no folder"])
def test_a_kept_folder_with_anything_else_in_it_is_made_again(agent: Path, tmp_path: Path, stray: str) -> None:
    """The manifest would not name it, and every later restore would be refused."""
    time.sleep(0.1)
    _, first = again(agent, tmp_path / "s")
    path = tmp_path / "s" / stray
    if stray == "no folder":
        (tmp_path / "s" / "state" / "empty").rmdir()
    elif stray == "state/link":
        path.symlink_to("MEMORY.md")
    else:
        path.parent.mkdir(exist_ok=True)
        path.write_text("x")
    made, read = again(agent, tmp_path / "s")
    assert read == first
    assert set(os.listdir(made.folder)) == {"MANIFEST.json", "state"}
    assert (entries(made.folder), contents(made.folder)) == fresh(agent, tmp_path)


def test_whatever_happens_to_the_folder_the_snapshot_is_that_of_a_first_time(agent: Path, tmp_path: Path) -> None:
    time.sleep(0.1)
    again(agent, tmp_path / "s")
    content = (agent / "tool.sh").read_bytes()
    times = (agent / "tool.sh").stat()
    (agent / "tool.sh").unlink()
    (agent / "tool.sh").write_bytes(b"X" * len(content))  # same size, same time of change, another file
    (agent / "tool.sh").chmod(0o755)
    os.utime(agent / "tool.sh", ns=(times.st_atime_ns, times.st_mtime_ns))
    (agent / "memory" / "2026-11-15.md").unlink()
    (agent / "memory").rmdir()
    (agent / "memory").write_text("a file now")
    (agent / "empty").rmdir()
    (agent / "MEMORY.md").rename(agent / "moved.md")
    (agent / "MEMORY.md").mkdir()
    (agent / "MEMORY.md" / "inner").write_text("a folder now")
    time.sleep(0.1)
    made, _ = again(agent, tmp_path / "s")
    assert (entries(made.folder), contents(made.folder)) == fresh(agent, tmp_path)
    (agent / "moved.md").chmod(0o640)
    made, read = again(agent, tmp_path / "s")
    assert read == {"moved.md"}
    assert (entries(made.folder), contents(made.folder)) == fresh(agent, tmp_path)


def test_a_database_is_copied_each_time(agent: Path, tmp_path: Path) -> None:
    db: Any = apsw.Connection(str(agent / "notes.db"))
    db.execute("create table t (a)")
    time.sleep(0.1)
    again(agent, tmp_path / "s")
    db.execute("insert into t values (1)")
    db.close()
    made, _ = again(agent, tmp_path / "s")
    assert entries(made.folder)["notes.db"] == fresh(agent, tmp_path)[0]["notes.db"]


@pytest.mark.parametrize("harm", ["copy changed", "copy gone", "machine started again", "killed", "other folder"])
def test_a_copy_that_may_not_be_the_same_is_made_again(agent: Path, tmp_path: Path, harm: str) -> None:
    time.sleep(0.1)
    _, first = again(agent, tmp_path / "s")
    copy, boot = tmp_path / "s" / "state" / "MEMORY.md", "one"
    match harm:
        case "copy changed":
            status = copy.stat()
            copy.write_bytes(b"Y" * status.st_size)
            os.utime(copy, ns=(status.st_atime_ns, status.st_mtime_ns))
        case "copy gone":
            copy.unlink()
        case "machine started again":
            boot = "two"
        case "killed":
            (tmp_path / "staged.index").unlink()
        case _:
            (tmp_path / "s").rename(tmp_path / "old")
            ensure_private_folder(tmp_path / "s")
    made, read = again(agent, tmp_path / "s", boot=boot)
    assert read == ({"MEMORY.md"} if harm.startswith("copy") else first)
    assert (entries(made.folder), contents(made.folder)) == fresh(agent, tmp_path)


def test_a_kill_while_a_kept_folder_is_changed_leaves_none(
    agent: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    time.sleep(0.1)
    _, first = again(agent, tmp_path / "s")
    (agent / "MEMORY.md").write_text("changed\n")

    def dies(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_pour", dies)
        with pytest.raises(KeyboardInterrupt):
            again(agent, tmp_path / "s")
    assert not (tmp_path / "staged.index").exists()
    made, read = again(agent, tmp_path / "s")
    assert read == first
    assert (entries(made.folder), contents(made.folder)) == fresh(agent, tmp_path)


def test_a_journal_that_is_no_file_of_the_folder_is_in_the_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a journal on a server the port makes the copy: a file that needs no server."""
    home, server = tmp_path / "home", tmp_path / "server"
    for folder in (home, server):
        folder.mkdir(mode=0o700)
    (home / "MEMORY.md").write_text("tea\n")
    address = JournalAddress(folder=home, url="postgresql://ada@db/agents")
    real = file_at(server / "kept.db")

    async def make() -> None:
        await (await open_journal(real))[0].close()

    asyncio.run(make())

    def serving(one: JournalAddress) -> JournalAdmin:
        return journal_at(real if one == address else one)

    for one in (module, databases):
        monkeypatch.setattr(one, "journal_at", serving)
    staging = tmp_path / "staging"
    ensure_private_folder(staging)
    subject = Subject(folder=home, journal=address, id="hf1x", name="ada", incarnation=3, seq=7, at=1, holdfast="0")
    made = stage(subject, staging)
    assert made.about.journal is not None
    found = entries(staging)
    assert (found["journal.db"].mode, found["MEMORY.md"].size) == (0o600, 4)
    assert journal_at(file_at(staging / "state" / "journal.db")).peek() == made.about.journal.id
