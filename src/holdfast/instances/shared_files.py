"""The shared documents of an agent's memory files, as they are kept beside the files.

`.holdfast/NAME.doc` holds the document of the file NAME. A document stays open between passes, under one peer id, as
long as its file is the one that was written here; where another process has written it, or after `close`, it is opened
again, and so gets a new peer id. Losing the file costs history, never a line: the instance asks another one for a whole
document.

Hold the place's lock for every call.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

import msgspec

from holdfast.errors import BadUpdate
from holdfast.host.private_files import write_atomically
from holdfast.instances.line_document import Author
from holdfast.instances.shared import SharedDocument, Update
from holdfast.layout.agent_home import HEARTBEAT_FILE, MemoryPlace
from holdfast.memory.exchange import read_quiet
from holdfast.memory.heartbeat import FreePart
from holdfast.memory.lines import heading, split
from holdfast.memory.projection import Written, keep_report, merge_file
from holdfast.memory.shared_lines import MergedAt, Start

DOCUMENT_BYTES_MAX = 64 * 1024 * 1024
COMPACT_BYTES = 256 * 1024  # a smaller document is left as it is
COMPACT_SHARE = 3  # of the text
COMPACT_GROWTH = 1.25  # since the last try; what an absent instance still needs is not dropped by trying again


class SharedFile:
    """One memory file that this instance shares with others."""

    def __init__(
        self, place: MemoryPlace, path: Path, *, instance: str, tasks: Mapping[str, str] | None = None
    ) -> None:
        """`tasks`: which task said an entry, by its id; the caller goes on filling it."""
        self._part = FreePart() if path.name == HEARTBEAT_FILE else None
        self._place = place
        self._path = path
        self._instance = instance
        self._tasks: Mapping[str, str] = {} if tasks is None else tasks
        self._now_ms = 0
        self._kept: tuple[int, ...] | None = None
        self._pid = 0
        self._tried_bytes = 0  # what the last compaction left
        self._open: SharedDocument | None = None
        self._closed: SharedDocument | None = None  # what others told, of a document that was closed

    @property
    def document(self) -> SharedDocument:
        """Opened, or still open. A document that cannot be read is none."""
        found = self._found()
        if self._open is None or self._kept != found or self._pid != os.getpid():
            closed = self._closed if (self._kept, self._pid) == (found, os.getpid()) else None
            self._kept, self._pid, self._closed = found, os.getpid(), None
            self._open = self._load()
            if closed is not None:
                self._open.go_on_from(closed)
        return self._open

    def close(self) -> None:
        """Free the memory of the document until it is asked for. After a pass: what is stored is all there is."""
        if self._open is not None and self._open.document is not None:
            self._open.document = None
            self._closed, self._open = self._open, None

    def found(self) -> None:
        """Make the first document, from the file: only for an instance that has no others yet, or that `may_found`."""
        raw = read_quiet(self._path) or b""
        shared = raw if self._part is None else self._part.opened(raw)
        self.document.found(split(shared.decode(errors="surrogateescape"))[0])
        self.store()

    def found_day(self) -> None:
        """Make the document of a day that began after this folder began to share: the same on every instance."""
        self.document.found(heading(self._path.stem), shown=True)
        self.store()

    def receive(self, update: Update, *, now_ms: int) -> bool:
        """As `SharedDocument.receive`; what was taken is durable on return. Its data was checked (`check_foreign`)."""
        changed = self.document.receive(update, self._author((), now_ms))
        if changed:
            self.store()
        return changed

    def merge(self, *, now_ms: int) -> Written | None:
        """One pass over the file, reported; None where this instance has no document yet."""
        if self.document.document is None:
            return None
        self._now_ms = now_ms
        told = merge_file(self._place, self._path, self, now_ms=now_ms, part=self._part)
        keep_report(self._place, [msgspec.structs.replace(told, unsure=())])
        return told

    def compact(self, enrolled: Collection[str]) -> None:
        """Drop the history that all know, where it has grown. What is stored changes only if it gets smaller: each
        store makes the file due for another pass."""
        document = self.document
        before = document.document
        if before is None or self._kept is None or not self._has_grown(size := self._kept[0], document.lines()):
            return
        if not document.compact(enrolled):
            return
        if len(document.stored()) < size:
            self.store()
        else:
            document.document = before
        self._tried_bytes = self._kept[0]

    def _has_grown(self, size: int, lines: Sequence[str]) -> bool:
        text = sum(len(line) + 1 for line in lines)
        return size > max(COMPACT_BYTES, COMPACT_SHARE * text, COMPACT_GROWTH * self._tried_bytes)

    # --- the port of the pass -----------------------------------------------------------------

    def begin(
        self,
        base: Sequence[str] | None,
        write: int,
        gone: Mapping[str, int],
        ours: Collection[str],
        *,
        file: Sequence[str],
        life: str,
        merged: MergedAt,
    ) -> Start:
        author = self._author(ours, self._now_ms)
        return self.document.begin(base, write, gone, author, file=file, life=life, merged=merged)

    def finish(self, lines: Sequence[str], write: int, ours: Collection[str], *, life: str) -> None:
        if self.document.finish(lines, write, self._author(ours, self._now_ms), life=life):
            self.store()

    # --- the file of the document -------------------------------------------------------------

    @property
    def _stored_at(self) -> Path:
        return self._place.document(self._path)

    def _author(self, ours: Collection[str], now_ms: int) -> Author:
        return Author(instance=self._instance, at_ms=now_ms, ours=ours, tasks=self._tasks)

    def _load(self) -> SharedDocument:
        if self._kept is not None and self._kept[0] <= DOCUMENT_BYTES_MAX:
            try:
                return SharedDocument.load(self._stored_at.read_bytes(), instance=self._instance, file=self._path.name)
            except BadUpdate:
                pass
        return SharedDocument(instance=self._instance, file=self._path.name)

    def store(self) -> None:
        try:
            write_atomically(self._stored_at, self.document.stored())
        except BaseException:  # what the library raises is no Exception
            self.close()  # the next pass begins with what is stored: the file may have changed by then
            raise
        self._kept = self._found()

    def _found(self) -> tuple[int, ...] | None:
        try:
            found = os.lstat(self._stored_at)
        except FileNotFoundError:
            return None
        return found.st_size, found.st_ino, found.st_mtime_ns
