"""What comes out of an archive is what the signed head says, or nothing comes out at all."""

from __future__ import annotations

import io
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from holdfast.backup.archive import contained_writer as contained
from holdfast.backup.archive.manifest import DEPTH_MAX, ManifestEntry, ManifestWriter, SnapshotAbout
from holdfast.backup.archive.reader import read_snapshot
from holdfast.backup.snapshot import staging
from holdfast.errors import ArchiveRefused, BackupDamaged
from holdfast.host.private_files import ensure_private_folder
from holdfast.identity.records.signed import Signed
from holdfast.identity.statements.statements import Head
from holdfast_proofs.backup_lab import BLOCK, Owner, archive, member, snapshot, tree_members

OWNER = Owner()
Members = list[bytes]


class Taken:
    """A snapshot of the agent's folder, as the members of its archive."""

    def __init__(self, agent: Path, root: Path) -> None:
        self.root = root
        self.staging = root / "staging"
        self.head: Signed[Head] = snapshot(OWNER, agent, self.staging)
        self.members = tree_members(self.staging)
        self.work = root / "work"
        ensure_private_folder(self.work)

    def read(self, stream: io.BytesIO) -> None:
        read_snapshot(stream, self.head, self.work)

    def member(self, name: str) -> int:
        """Where the member of this name stands."""
        found = [at for at, one in enumerate(self.members) if one.startswith(name.encode() + b"\0")]
        assert len(found) == 1, (name, found)
        return found[0]

    def content(self, name: str) -> bytes:
        return (self.staging / name).read_bytes()


@pytest.fixture
def taken(agent: Path, tmp_path: Path) -> Taken:
    return Taken(agent, tmp_path)


def tree(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {
        path.relative_to(folder).as_posix(): (
            path.stat().st_mode & 0o7777,
            path.read_bytes() if path.is_file() else b"",
        )
        for path in folder.rglob("*")
    }


def test_an_honest_archive_gives_the_agents_files_and_modes(agent: Path, taken: Taken) -> None:
    taken.read(archive(taken.members))
    assert tree(taken.work / "state") == tree(agent)


def test_times_come_back_by_the_manifest_and_none_lies_in_the_future(agent: Path, tmp_path: Path) -> None:
    ahead = time.time() + 200 * 86_400
    os.utime(agent / "tool.sh", (ahead, ahead))
    os.utime(agent / "MEMORY.md", ns=(0, 1_700_000_000_123_456_000))
    os.utime(agent / "memory", (1_600_000_000, 1_600_000_000))
    taken = Taken(agent, tmp_path)
    began = time.time_ns()
    taken.read(archive(taken.members))
    state = taken.work / "state"
    assert (state / "MEMORY.md").stat().st_mtime_ns == 1_700_000_000_123_456_000
    assert (state / "memory").stat().st_mtime == 1_600_000_000
    assert began <= (state / "tool.sh").stat().st_mtime_ns <= time.time_ns()
    assert (state / "tool.sh").stat().st_mode & 0o7777 == 0o755


def test_a_snapshot_of_the_first_format_is_read_as_it_was(
    agent: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Made before manifests had times: what is restored is as new as the restore."""
    os.utime(agent / "MEMORY.md", (1_600_000_000, 1_600_000_000))
    real = ManifestWriter.add

    def add(self: ManifestWriter, entry: ManifestEntry) -> None:
        real(self, structs.replace(entry, mtime_us=-1))

    monkeypatch.setattr(ManifestWriter, "add", add)

    def about(**fields: Any) -> SnapshotAbout:
        return structs.replace(SnapshotAbout(**fields), mode=-1, format=1)

    monkeypatch.setattr(staging, "SnapshotAbout", about)
    taken = Taken(agent, tmp_path)
    assert b"mtime" not in taken.content("MANIFEST.json")
    began = time.time()
    taken.read(archive(taken.members))
    assert tree(taken.work / "state") == tree(agent)
    assert (taken.work / "state" / "MEMORY.md").stat().st_mtime >= began - 1


def test_long_names_come_back(agent: Path, tmp_path: Path) -> None:
    deep = agent / ("d" * 120) / ("e" * 200)
    deep.mkdir(parents=True)
    (deep / ("f" * 255)).write_text("long")
    (deep / "ümlaut\n").write_text("odd")
    taken = Taken(agent, tmp_path)
    taken.read(archive(taken.members))
    assert tree(taken.work / "state") == tree(agent)


def test_links_that_stay_inside_come_back_from_the_manifest_others_do_not(agent: Path, tmp_path: Path) -> None:
    (agent / "inside").symlink_to("memory/2026-11-15.md")
    (agent / "memory" / "up").symlink_to("../MEMORY.md")
    (agent / "outside").symlink_to("../../etc/passwd")
    (agent / "absolute").symlink_to("/etc/passwd")
    taken = Taken(agent, tmp_path)
    found = read_snapshot(archive(taken.members), taken.head, taken.work)
    state = taken.work / "state"
    assert (state / "inside").read_text() == "an entry\n"
    assert (state / "memory" / "up").is_symlink()
    assert not (state / "outside").is_symlink()
    assert not (state / "absolute").is_symlink()
    assert {one.path for one in found.links} == {"inside", "memory/up", "outside", "absolute"}


def test_the_order_of_members_does_not_matter(agent: Path, taken: Taken) -> None:
    taken.read(archive([taken.members[0], *reversed(taken.members[1:])]))
    assert tree(taken.work / "state") == tree(agent)


Break = Callable[[Taken], io.BytesIO]


def added(*more: bytes) -> Break:
    """The honest archive, and this in it."""
    return lambda taken: archive([*taken.members, *more])


def first(*more: bytes) -> Break:
    return lambda taken: archive([*more, *taken.members])


def instead(name: str, make: Callable[[Taken], bytes]) -> Break:
    def broken(taken: Taken) -> io.BytesIO:
        taken.members[taken.member(name)] = make(taken)
        return archive(taken.members)

    return broken


def without(name: str) -> Break:
    def broken(taken: Taken) -> io.BytesIO:
        del taken.members[taken.member(name)]
        return archive(taken.members)

    return broken


def cut(by: int) -> Break:
    return lambda taken: io.BytesIO(archive(taken.members).getvalue()[:-by])


def ended(end: bytes) -> Break:
    return lambda taken: archive(taken.members, end=end)


MEMORY = "state/MEMORY.md"
EVIL = b"evil\n"
LONG = b"././@LongLink"

HOSTILE: dict[str, Break] = {
    "climbs out": added(member("../evil", EVIL)),
    "climbs out of state": added(member("state/../../evil", EVIL)),
    "climbs in the middle": added(member("state/memory/../../../evil", EVIL)),
    "absolute": added(member("/tmp/evil", EVIL)),
    "absolute under state": added(member("state//tmp/evil", EVIL)),
    "dot in the way": added(member("state/./evil", EVIL)),
    "ends in a slash": added(member("state/evil/", EVIL)),
    "beside state": added(member("evil", EVIL)),
    "below the head": added(member("HEAD/evil", EVIL)),
    "folder beside state": added(member("other/", kind=b"5", mode=0o700)),
    "state is a file": first(member("state", EVIL)),
    "the root is a file": first(member(".", EVIL)),
    "empty name": added(member("", EVIL)),
    "symbolic link": added(member("state/evil", kind=b"2", link=b"/etc")),
    "link, then through it": added(member("state/d", kind=b"2", link=b"/tmp"), member("state/d/evil", EVIL)),
    "hard link": added(member("state/evil", kind=b"1", link=b"/etc/passwd")),
    "hard link inside": added(member("state/evil", kind=b"1", link=b"state/MEMORY.md")),
    "character device": added(member("state/null", kind=b"3")),
    "block device": added(member("state/disk", kind=b"4")),
    "named pipe": added(member("state/pipe", kind=b"6")),
    "contiguous file": added(member("state/evil", EVIL, kind=b"7")),
    "sparse file": added(member("state/sparse", EVIL, kind=b"S")),
    "old form of a sparse file": instead(
        MEMORY, lambda t: member(MEMORY, t.content(MEMORY), at_386=b"00000000001\x00")
    ),
    "continued file": added(member("state/evil", EVIL, kind=b"M")),
    "label": first(member("evil", kind=b"V")),
    "dump of a folder": added(member("state/", EVIL, kind=b"D")),
    "long link": added(member(LONG, b"/etc/passwd\0", kind=b"K")),
    "extended header": added(member("x", b"30 path=../../../../tmp/evil\n", kind=b"x"), member("state/ok", EVIL)),
    "global extended header": first(member("x", b"20 path=../evil\n", kind=b"g")),
    "unknown kind": added(member("state/evil", EVIL, kind=b"Z")),
    "link target in a file": instead(MEMORY, lambda t: member(MEMORY, t.content(MEMORY), link=b"/etc/passwd")),
    "long name climbs": added(member(LONG, b"../" * 40 + b"tmp/evil\0", kind=b"L"), member("../" * 33, EVIL)),
    "long name of another member": added(
        member(LONG, b"state/" + b"a" * 200 + b"\0", kind=b"L"), member("state/b", EVIL)
    ),
    "long name with a NUL": added(
        member(LONG, b"state/a\0/../../evil" + b"a" * 99 + b"\0", kind=b"L"), member("state/a")
    ),
    "long name without an end": added(
        member(LONG, b"state/" + b"a" * 200, kind=b"L"), member(b"state/" + b"a" * 94, EVIL)
    ),
    "long name of a megabyte": added(
        member(LONG, b"state/" + b"a" * 1_000_000 + b"\0", kind=b"L"), member("state/a", EVIL)
    ),
    "long name of a long name": added(
        member(LONG, b"state/" + b"a" * 200 + b"\0", kind=b"L"),
        member(LONG, b"state/" + b"b" * 200 + b"\0", kind=b"L"),
        member(b"state/" + b"b" * 94, EVIL),
    ),
    "name in the prefix": instead(MEMORY, lambda t: member(MEMORY, t.content(MEMORY), at_345=b"../../tmp")),
    "posix form with a prefix": added(member("evil", EVIL, at_257=b"ustar\x0000", at_345=b"../..")),
    "no form at all": added(member("state/evil", EVIL, at_257=bytes(8))),
    "name too long": added(member("state/" + "n" * 256, EVIL)),
    "too deep": added(member("state/" + "d/" * (DEPTH_MAX + 4) + "evil", EVIL)),
    "name not UTF-8": added(member(b"state/\xff\xfe", EVIL)),
    "the same file twice": lambda t: archive([*t.members, t.members[t.member(MEMORY)]]),
    "the same file twice, other content": added(member(MEMORY, EVIL)),
    "the same folder twice": lambda t: archive([*t.members, t.members[t.member("state/memory/")]]),
    "a file where a folder is": added(member("state/memory", EVIL)),
    "a folder where a file is": added(member(MEMORY + "/", kind=b"5", mode=0o700)),
    "below a file": added(member(MEMORY + "/evil", EVIL)),
    "other case": added(member("state/memory.MD", EVIL)),
    "other form of an accent": added(member("state/e\u0301", EVIL), member("state/é", EVIL)),
    "extra file": added(member("state/evil", EVIL)),
    "extra empty folder": added(member("state/evil/", kind=b"5", mode=0o700)),
    "extra head": added(member("HEAD", EVIL)),
    "size of an exabyte": added(member("state/huge", EVIL, size=1 << 60)),
    "size of a terabyte": added(member("state/huge", EVIL, size=1 << 40)),
    "negative size": added(member("state/evil", EVIL, at_124=b"\xff" * 12)),
    "size with a sign": added(member("state/evil", EVIL, at_124=b"-0000000005\x00")),
    "size in letters": added(member("state/evil", EVIL, at_124=b"0000000000x\x00")),
    "size without an end": added(member("state/evil", EVIL, at_124=b"000000000005")),
    "size of nothing": added(member("state/evil", EVIL, at_124=bytes(12))),
    "folder with content": added(member("state/evil/", EVIL, kind=b"5", mode=0o700)),
    "setuid": instead("state/tool.sh", lambda t: member("state/tool.sh", t.content("state/tool.sh"), mode=0o4755)),
    "sticky folder": added(member("state/evil/", kind=b"5", mode=0o1777)),
    "mode in letters": added(member("state/evil", EVIL, at_100=b"rwxr-xr-")),
    "changed mode": instead(MEMORY, lambda t: member(MEMORY, t.content(MEMORY), mode=0o644)),
    "changed mode of a folder": instead("state/memory/", lambda t: member("state/memory/", kind=b"5", mode=0o777)),
    "changed content": instead(MEMORY, lambda t: member(MEMORY, t.content(MEMORY).replace(b"Tuesday", b"Sundays"))),
    "longer content": instead(MEMORY, lambda t: member(MEMORY, t.content(MEMORY) + EVIL)),
    "shorter content": instead(MEMORY, lambda t: member(MEMORY, t.content(MEMORY)[:-1])),
    "contents swapped": lambda t: archive(
        [
            member(MEMORY, t.content("state/tool.sh")) if at == t.member(MEMORY) else one
            for at, one in enumerate(t.members)
        ]
    ),
    "checksum wrong": instead(MEMORY, lambda t: member(MEMORY, t.content(MEMORY), at_148=b"000000\x00 ")),
    "something in the padding": instead(MEMORY, lambda t: member(MEMORY, t.content(MEMORY))[:-1] + b"x"),
    "missing file": without(MEMORY),
    "missing folder": without("state/empty/"),
    "missing manifest": without("MANIFEST.json"),
    "missing head": without("HEAD"),
    "another manifest": instead(
        "MANIFEST.json",
        lambda t: member("MANIFEST.json", t.content("MANIFEST.json").replace(b'"mode":384', b'"mode":420')),
    ),
    "another head": instead("HEAD", lambda t: member("HEAD", OWNER.seal_head(t.head.record).line() + b"\n ")),
    "empty archive": lambda t: archive([]),
    "nothing at all": lambda t: io.BytesIO(b""),
    "cut inside a header": lambda t: io.BytesIO(archive(t.members).getvalue()[: BLOCK + 100]),
    "cut inside a file": lambda t: io.BytesIO(b"".join(t.members[:-1]) + t.members[-1][: BLOCK + 3]),
    "cut before the end": cut(2 * BLOCK),
    "one block of the end missing": cut(BLOCK),
    "a member behind the end": ended(bytes(BLOCK) + member("state/evil", EVIL) + bytes(2 * BLOCK)),
    "an archive behind the archive": ended(bytes(2 * BLOCK) + member("state/evil", EVIL) + bytes(2 * BLOCK)),
    "garbage behind the end": ended(bytes(2 * BLOCK) + b"garbage"),
    "a megabyte of zeros behind the end": ended(bytes(2 << 20)),
    "text": lambda t: io.BytesIO(b"<html>not found</html>" * 100),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_archive_is_refused_and_nothing_is_outside(name: str, taken: Taken) -> None:
    before = {path for path in taken.root.rglob("*") if taken.work not in path.parents}
    with pytest.raises((ArchiveRefused, BackupDamaged)):
        taken.read(HOSTILE[name](taken))
    after = {path for path in taken.root.rglob("*") if taken.work not in path.parents}
    assert after == before
    assert not Path("/tmp/evil").exists()
    assert not any(path.is_symlink() for path in taken.work.rglob("*"))


def test_there_are_as_many_hostile_archives_as_was_promised() -> None:
    assert len(HOSTILE) >= 80


def test_more_members_than_a_snapshot_may_have_are_refused(taken: Taken, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.backup.archive.reader.ENTRIES_MAX", 50)
    with pytest.raises(ArchiveRefused, match="more members"):
        taken.read(added(*(member(f"state/{n}", b"") for n in range(60)))(taken))


@pytest.mark.parametrize("by_kernel", [True, False])
def test_a_folder_swapped_for_a_link_leads_nowhere(
    by_kernel: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even where somebody could write into the private folder."""
    if not by_kernel:
        monkeypatch.setattr(contained, "has_openat2", lambda: False)
    elif not contained.has_openat2():
        pytest.skip("this kernel has no openat2")
    outside, root = tmp_path / "outside", tmp_path / "root"
    outside.mkdir()
    root.mkdir()
    with contained.ContainedWriter(root) as made:
        made.make_folder("a/b")
        made.make_folder("c")
        (root / "a" / "b").rmdir()
        (root / "a" / "b").symlink_to(outside)
        with pytest.raises(OSError, match=r"a/b|symbolic|Not a directory"):
            made.new_file("a/b/evil")
        for bad in ("../evil/x", "/tmp/evil/x"):
            with pytest.raises(OSError, match=r"evil|cross-device|denied|Invalid"):
                made._open(made._root, bad)
    assert list(outside.iterdir()) == []
