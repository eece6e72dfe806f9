"""MANIFEST.json: what a snapshot holds, exactly and no more.

    {"about":{...},"files":[
    {"kind":"folder","mode":448,"mtime_us":1794769800000000,"path":"memory"},
    {"kind":"file","mode":384,"mtime_us":...,"path":"memory/2026-11-15.md","sha256":"...","size":120}
    ],"notes":[
    {"path":"instance","text":"left out: this host's own keys and lease"}
    ],"sums":{...}}

One tree has one encoding: RFC 8785 JSON with a new line around each member of the two lists, and
entries in the order of a walk, a folder before what it holds, names by their code points. The
digest of the bytes is in the signed head, so whoever has the head knows every byte of the tree.

Written and read line by line: neither side ever holds more than one entry, however many files
there are. The reader is a border. What it gives out can be made below a folder without a look at
its paths: none is absolute or climbs, none comes twice, every one lies in a folder that came
before it, and no line has a second spelling.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from enum import StrEnum
from typing import BinaryIO, TypeVar

import msgspec

from holdfast.core.decoding import decode_json
from holdfast.errors import BackupDamaged
from holdfast.host.manifest import PATH_BYTES_MAX, find_bad_name
from holdfast.identity.records.encodings import Digest, digest_text
from holdfast.identity.statements.statements import JournalMark

FORMAT = 2
READABLE = (1, 2)  # format 1 has no times, and no mode of the folder itself
NAME = "MANIFEST.json"
LINE_BYTES_MAX = 64 * 1024  # two paths with every letter escaped
ENTRIES_MAX = 200_000
DEPTH_MAX = 32
NOTES_MAX = 10_000
MODE_MAX = 0o777
MTIME_US_MAX = 2**53 - 1  # the largest whole number that every reader of JSON takes exactly
_SHA256_HEX = 64
T = TypeVar("T")


class EntryKind(StrEnum):
    FILE = "file"
    FOLDER = "folder"
    LINK = "link"  # recorded, not followed; it is not in the archive
    DATABASE = "database"  # taken by SQLite's own backup


# Fields in the order of the alphabet, so that the encoder's order is RFC 8785's.


class ManifestEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    kind: EntryKind
    mode: int = -1  # of all but links
    mtime_us: int = -1  # when it was changed, unix microseconds; of all but links
    path: str
    sha256: str = ""  # of files and databases
    size: int = -1  # likewise
    target: str = ""  # of links

    @property
    def is_content(self) -> bool:
        return self.kind in (EntryKind.FILE, EntryKind.DATABASE)


class SnapshotNote(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Something about a path that a person should know: left out, changed while it was copied."""

    path: str
    text: str


class SnapshotJournal(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    id: str
    incarnation: int
    sequence: int

    @property
    def mark(self) -> JournalMark:
        """As a head has it."""
        return JournalMark(id=self.id, sequence=self.sequence, incarnation=self.incarnation)


class MadeBy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """By which programs."""

    engine: str = ""
    holdfast: str


class SnapshotAbout(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    at: int  # unix seconds, when the snapshot began
    e: int  # incarnation of the agent
    format: int = msgspec.field(default=FORMAT)
    id: str  # of the agent
    journal: SnapshotJournal | None = None
    made: MadeBy
    mode: int = -1  # of the folder itself
    name: str  # of the agent
    seq: int


class Sums(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    bytes: int  # of all files and databases
    files: int  # how many of them
    lock: str  # digest of the files that pin packages; empty where there is none
    source: str  # digest of the files of code


class _FirstLine(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`{"about":{...},"files":[` with its brackets closed."""

    about: SnapshotAbout
    files: list[int]


_encode = msgspec.json.Encoder().encode
_ABOUT, _FILES, _NOTES, _SUMS, _END = (b'{"about":', b',"files":[', b'],"notes":[', b'],"sums":', b"}\n")


class ManifestWriter:
    """Writes entries as they come; `close` gives the digest of what was written."""

    def __init__(self, file: BinaryIO, about: SnapshotAbout) -> None:
        self._file = file
        self._hash = hashlib.sha256()
        self._source, self._lock = hashlib.sha256(), hashlib.sha256()
        self._sources = self._locks = 0
        self._notes: list[SnapshotNote] = []
        self._more_notes = 0
        self._first = True
        self.entries = self.files = self.bytes = 0
        self._write(_ABOUT + _encoded_about(about) + _FILES)

    def add(self, entry: ManifestEntry) -> None:
        self._item(_encode(entry))
        self.entries += 1
        if entry.is_content:
            self.files += 1
            self.bytes += entry.size
            self._sum_up(entry)

    def note(self, path: str, text: str) -> None:
        if len(self._notes) < NOTES_MAX:
            self._notes.append(SnapshotNote(path=path, text=text))
        else:
            self._more_notes += 1

    @property
    def notes(self) -> tuple[SnapshotNote, ...]:
        return tuple(self._notes)

    def close(self) -> Digest:
        """The digest of the bytes. The file itself is the caller's."""
        if self._more_notes:
            self._notes.append(SnapshotNote(path="", text=f"and {self._more_notes:,} more notes"))
        self._write(b"\n" + _NOTES)
        self._first = True
        for note in self._notes:
            self._item(_encode(note))
        sums = Sums(
            bytes=self.bytes,
            files=self.files,
            lock=self._lock.hexdigest() if self._locks else "",
            source=self._source.hexdigest() if self._sources else "",
        )
        self._write(b"\n" + _SUMS + _encode(sums) + _END)
        return digest_text(self._hash.digest())

    def _sum_up(self, entry: ManifestEntry) -> None:
        line = f"{entry.sha256}  {entry.path}\n".encode()  # as sha256sum prints it
        if is_lock(entry.path):
            self._lock.update(line)
            self._locks += 1
        elif is_source(entry.path):
            self._source.update(line)
            self._sources += 1

    def _item(self, raw: bytes) -> None:
        self._write((b"\n" if self._first else b",\n") + raw)
        self._first = False

    def _write(self, raw: bytes) -> None:
        self._hash.update(raw)
        self._file.write(raw)


class ManifestReader:
    """Reads a manifest once, from its start: `about`, then `entries()`, then `notes` and `sums`.
    Nothing that was read counts before `entries()` has come to its end without an error and `digest` is the one in the
    signed head. Raises BackupDamaged for what no writer writes."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._hash = hashlib.sha256()
        self._rest = b""
        self.notes: tuple[SnapshotNote, ...] = ()
        self.sums: Sums | None = None
        line = self._line()
        if not line.endswith(_FILES):
            raise _damaged("its first line is malformed")
        first = _parsed(line + b"]}", _FirstLine)
        self.about = first.about
        if self.about.format not in READABLE:
            raise BackupDamaged(
                f"the manifest has format {self.about.format}; this Holdfast reads at most format {FORMAT}",
                hint="install a newer Holdfast",
            )
        if _ABOUT + _encoded_about(self.about) + _FILES != line:
            raise _damaged("its first line is not in canonical form")
        if not -1 <= self.about.mode <= MODE_MAX:
            raise _damaged("its folder has a mode that is not allowed")

    def entries(self) -> Iterator[ManifestEntry]:
        """Every entry, checked against those before it."""
        walk, files, size = _Walk(), 0, 0
        for count, raw in enumerate(self._items(_NOTES)):
            entry = _parsed_one(raw, ManifestEntry)
            why = _find_wrong(entry) or walk.find_wrong(entry)
            if why:
                raise _damaged(f"{entry.path[:200]!r}: {why}")
            if count >= ENTRIES_MAX:
                raise _damaged(f"it has more than {ENTRIES_MAX:,} entries")
            files += entry.is_content
            size += max(entry.size, 0)
            yield entry
        self._end(files=files, size=size)

    @property
    def digest(self) -> Digest:
        return digest_text(self._hash.digest())

    def _end(self, *, files: int, size: int) -> None:
        self.notes = tuple(_parsed_one(raw, SnapshotNote) for raw in self._items(_SUMS))
        if len(self.notes) > NOTES_MAX + 1:
            raise _damaged("it has too many notes")
        raw = self._rest
        if not raw.endswith(b"}"):
            raise _damaged("its last line is missing")
        self.sums = _parsed_one(raw[:-1], Sums)
        if (self.sums.files, self.sums.bytes) != (files, size):
            raise _damaged("its totals do not match its entries")
        if self._file.read(1):
            raise _damaged("data follows its end")

    def _items(self, end: bytes) -> Iterator[bytes]:
        """The members of a list; what follows `end` on its line is in `_rest` afterwards."""
        comma, last = False, False
        while not (line := self._line()).startswith(end):
            if last:
                raise _damaged("a comma is missing between two members of a list")
            comma = line.endswith(b",")
            last = not comma
            yield line[:-1] if comma else line
        self._rest = line[len(end) :]
        if comma:
            raise _damaged("a list ends with a comma")
        if end == _NOTES and self._rest:
            raise _damaged("unexpected data follows the start of its notes")

    def _line(self) -> bytes:
        line = self._file.readline(LINE_BYTES_MAX)
        if not line.endswith(b"\n"):
            raise _damaged("it ends too early, or a line is too long")
        self._hash.update(line)
        return line[:-1]


def mtime_us_of(changed_ns: int) -> int:
    """A file's time of change as manifests have it: whatever a disk says, within what is kept."""
    return min(max(changed_ns // 1000, 0), MTIME_US_MAX)


def is_source(path: str) -> bool:
    """Whether the file is code, by its name."""
    return path.endswith((".py", ".js", ".ts", ".sh", ".sql"))


def is_lock(path: str) -> bool:
    """Whether the file pins the versions of packages, by its name."""
    name = path.rpartition("/")[2]
    known = ("requirements.txt", "package-lock.json", "pnpm-lock.yaml", "go.sum")
    return name in known or name.endswith(".lock")


class _Walk:
    """Whether entries come in the order of a walk: a stack of the folders that are open."""

    def __init__(self) -> None:
        self._open: list[str] = []  # names, from the top
        self._last: list[str] = [""]  # for each open folder and the root: the newest name in it

    def find_wrong(self, entry: ManifestEntry) -> str:
        *above, name = entry.path.split("/")
        if len(above) >= DEPTH_MAX:
            return f"deeper than {DEPTH_MAX} folders"
        if above != self._open[: len(above)]:
            return "its folder does not come before it"
        del self._open[len(above) :], self._last[len(above) + 1 :]
        if name <= self._last[-1]:
            return "out of order, or present twice"
        self._last[-1] = name
        if entry.kind is EntryKind.FOLDER:
            self._open.append(name)
            self._last.append("")
        return ""


def _find_wrong(entry: ManifestEntry) -> str:
    """What no entry of its kind can say; empty where nothing is wrong."""
    if len(entry.path.encode(errors="surrogatepass")) > PATH_BYTES_MAX:
        return "its path is too long"
    for name in entry.path.split("/"):
        if why := find_bad_name(name):
            return why
    if entry.kind is EntryKind.LINK:
        bare = entry.mode == entry.size == entry.mtime_us == -1
        return "" if entry.target and bare else "not a link's fields"
    if not 0 <= entry.mode <= MODE_MAX or entry.target:
        return "a file has a mode that is not allowed"
    if not -1 <= entry.mtime_us <= MTIME_US_MAX:
        return "a file has an impossible time of change"
    if entry.kind is EntryKind.FOLDER:
        return "" if entry.size == -1 and not entry.sha256 else "not a folder's fields"
    hexadecimal = len(entry.sha256) == _SHA256_HEX and not entry.sha256.strip("0123456789abcdef")
    return "" if entry.size >= 0 and hexadecimal else "not a file's fields"


def _encoded_about(about: SnapshotAbout) -> bytes:
    # `format` is always written, though it has a default.
    fields = {**msgspec.to_builtins(about), "format": about.format}
    return msgspec.json.encode(fields, order="sorted")


def _parsed_one(raw: bytes, kind: type[T]) -> T:
    found = _parsed(raw, kind)
    if _encode(found) != raw:
        raise _damaged("a line is not in canonical form")
    return found


def _parsed(raw: bytes, kind: type[T]) -> T:
    try:
        return decode_json(raw, kind)
    except (ValueError, RecursionError) as error:
        raise _damaged(str(error)) from None


def _damaged(why: str) -> BackupDamaged:
    return BackupDamaged(f"Holdfast cannot use the manifest of a snapshot: {why}")
