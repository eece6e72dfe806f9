"""Borders of backups: the stream of an archive, a manifest, a head, lines of heads."""

from __future__ import annotations

import io

from holdfast.backup.archive.manifest import (
    EntryKind,
    MadeBy,
    ManifestEntry,
    ManifestReader,
    ManifestWriter,
    SnapshotAbout,
)
from holdfast.backup.archive.tar_stream import TarStream
from holdfast.backup.chain.heads import parse_lines
from holdfast.host.manifest import find_bad_name
from holdfast.identity.statements.statements import Head, parse_head
from holdfast_proofs.backup_lab import AT, Owner, member
from holdfast_proofs.fuzz.feed import law

BYTES_MAX = 1 << 16
ENTRIES_MAX = 50
DEPTH_MAX = 8

_OWNER = Owner()
_HEAD = _OWNER.seal_head(
    Head(
        id=_OWNER.id,
        g=0,
        s=0,
        e=1,
        seq=1,
        at=AT,
        manifest=_OWNER.log().head.digest,
        archive="ada-1-1-x",
        bytes=5,
        files=1,
    )
)


def _manifest() -> bytes:
    file = io.BytesIO()
    about = SnapshotAbout(at=AT, e=1, id=_OWNER.id, made=MadeBy(holdfast="0"), mode=0o755, name="ada", seq=1)
    writer = ManifestWriter(file, about)
    writer.add(ManifestEntry(kind=EntryKind.LINK, path="a", target="m/b"))
    writer.add(ManifestEntry(kind=EntryKind.FOLDER, mode=0o700, path="m"))
    writer.add(ManifestEntry(kind=EntryKind.FILE, mode=0o600, mtime_us=AT * 10**6, path="m/b", sha256="0" * 64, size=5))
    writer.note("instance", "left out")
    writer.close()
    return file.getvalue()


MANIFESTS = (_manifest(),)
ARCHIVES = (
    member("./", kind=b"5", mode=0o700)
    + member("state/", kind=b"5", mode=0o700)
    + member("state/a", b"hello")
    + member("state/" + "n" * 120, b"long")
    + bytes(1024),
)
HEADS = (_HEAD.line(),)
WORDS = (
    b"ustar  \0",
    b"ustar\000",
    b"././@LongLink",
    b"../",
    b"/",
    b"state/",
    b"\0" * 12,
    b"\x80" + b"\xff" * 11,
    b"77777777777\0",
    b'"path":"../x"',
    b'"kind":"link"',
    b'],"notes":[',
    b'],"sums":{',
    b'"mode":4095',
    b'"size":-1',
    b'"prev":',
    b'"seq":0',
    b"\n",
    b",\n",
)


def archive(raw: bytes) -> None:
    """What is given out can be made below a folder without a look at its name."""
    tar = TarStream(io.BytesIO(raw), bytes_max=BYTES_MAX, entries_max=ENTRIES_MAX, depth_max=DEPTH_MAX)
    size = 0
    for entry in tar.members():
        names = entry.path.split("/") if entry.path else []
        law(not any(find_bad_name(name) for name in names), "a name that leads somewhere else")
        law(0 <= entry.mode <= 0o777, "a mode with more than nine bits")
        size += sum(len(piece) for piece in tar.content())
        law(size <= BYTES_MAX, "more bytes than were allowed")


def manifest(raw: bytes) -> None:
    reader = ManifestReader(io.BytesIO(raw))
    known: set[str] = set()
    for entry in reader.entries():
        law(entry.path not in known, "an entry twice")
        known.add(entry.path)
        law(not any(find_bad_name(name) for name in entry.path.split("/")), "a bad name")
    law(reader.sums is not None, "a manifest without its end")


def head(raw: bytes) -> None:
    held = parse_lines(raw + b"\n", where="heads")
    law(all(one.line() in raw for one in held.heads), "a head that nobody wrote")
    law(parse_head(raw).line() == raw, "a head with two spellings")
