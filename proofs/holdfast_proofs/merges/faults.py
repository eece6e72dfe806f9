"""The traps of the library and of merges, opened again: each must be found."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager

from holdfast.instances.line_document import LINES, Author, LineDocument
from holdfast.instances.shared import SharedDocument
from holdfast.memory.shared_lines import NEVER, MergedAt, Start


@contextmanager
def fixed_peer() -> Generator[None]:
    """An instance continues under the peer id that it had before it was restored."""
    load = SharedDocument.load.__func__

    def same_peer(cls: type[SharedDocument], data: bytes, *, instance: str, file: str) -> SharedDocument:
        found: SharedDocument = load(cls, data, instance=instance, file=file)
        if found.document is not None:
            peer = hashlib.sha256(instance.encode()).digest()[:8]
            found.document._doc.peer_id = int.from_bytes(peer) >> 1
        return found

    with patched(SharedDocument, "load", classmethod(same_peer)):
        yield


@contextmanager
def whole_file() -> Generator[None]:
    """Every change replaces all lines."""
    change = LineDocument.change_to

    def replace_all(
        self: LineDocument,
        lines: Sequence[str],
        author: Author,
        *,
        known: LineDocument | None = None,
        steady: Collection[str] = (),
    ) -> bool:
        if self.lines() == list(lines):
            return False
        if count := len(self._look()[0]):
            self._doc.get_list(LINES).delete(0, count)
            self._doc.commit()
            self._read = None
        return change(self, lines, author, known=known, steady=steady)

    with patched(LineDocument, "change_to", replace_all):
        yield


@contextmanager
def wrong_version() -> Generator[None]:
    """The file is compared with what the document says now, not with what it showed."""
    begin = SharedDocument.begin

    def now(
        self: SharedDocument,
        base: Sequence[str] | None,
        write: int,
        gone: Mapping[str, int],
        author: Author,
        *,
        file: Sequence[str],
        life: str = "",
        merged: MergedAt = NEVER,
    ) -> Start:
        start = begin(self, base, write, gone, author, file=file, life=life, merged=merged)
        return Start(lines=start.lines, base=None if start.base is None else list(start.lines), gone=start.gone)

    with patched(SharedDocument, "begin", now):
        yield


@contextmanager
def early_compaction() -> Generator[None]:
    """History is dropped that other instances do not know."""

    def at_once(self: SharedDocument, enrolled: Collection[str]) -> None:
        if self.document is not None:
            self.document = LineDocument(self.document.copy(keep_from=self.document.version()))

    with patched(SharedDocument, "compact", at_once):
        yield


@contextmanager
def no_normaliser() -> Generator[None]:
    """Lines that two instances brought in at once are both shown."""
    from holdfast.instances import elements

    def never(_line: str) -> bool:
        return False

    with patched(elements, "is_telling", never):
        yield


@contextmanager
def lines_forgotten() -> Generator[None]:
    """An instance that takes a whole document drops its own lines."""

    def take_over(self: SharedDocument, mine: LineDocument, other: LineDocument, author: Author) -> None:
        self.document = other

    with patched(SharedDocument, "_rejoin", take_over):
        yield


@contextmanager
def nothing_stays_gone() -> Generator[None]:
    """Another instance writes an entry that was removed."""

    def nothing(self: LineDocument) -> frozenset[str]:
        return frozenset()

    with patched(LineDocument, "gone", nothing):
        yield


@contextmanager
def own_beginning() -> Generator[None]:
    """An instance whose document is lost makes a new one from its file."""

    def at_once(self: SharedDocument, enrolled: Collection[str]) -> bool:
        return self.document is None

    with patched(SharedDocument, "may_found", at_once):
        yield


@contextmanager
def patched(where: object, name: str, new: object) -> Generator[None]:
    before = vars(where)[name]
    setattr(where, name, new)
    try:
        yield
    finally:
        setattr(where, name, before)


FAULTS: dict[str, Callable[[], AbstractContextManager[None]]] = {
    "fixed-peer-id": fixed_peer,
    "whole-file-update": whole_file,
    "diff-at-wrong-version": wrong_version,
    "early-compaction": early_compaction,
    "no-normaliser": no_normaliser,
    "rejoin-drops-lines": lines_forgotten,
    "removed-entries-return": nothing_stays_gone,
    "every-instance-founds": own_beginning,
}
