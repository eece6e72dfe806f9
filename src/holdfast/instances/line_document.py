"""A list of lines that several instances change at once and that ends the same everywhere.

Loro (a CRDT) keeps the list; nothing outside of this module knows that. One element is one whole line with who
brought it in: a merge keeps or removes lines, and never cuts inside one. What is true at all times:

- Two documents that know the same changes show the same lines, whatever the order in which they learned them.
- A line is gone only where an instance that showed it removed it. A line that was brought in elsewhere meanwhile,
  with the same words, stays.
- An entry (a line with an id of ours) that was removed or edited stays away as it was, also where another instance
  writes it from the same journal later: its hash is kept in `gone`. Only a person who puts the line back ends that.
- A person's line that was brought in and removed by changes which this document never got stays away too: its mark is
  in `gone` (`withdrawn_since`). The same words that somebody writes later are another line.
- Two instances that bring in the same line at once show it once. Each element has a number: how many such lines its
  file had already. Elements with equal words and number are one line, shown at the first place. So a file in which a
  person wrote a line twice on purpose keeps both. Lines of under four characters are never taken for one.
  Nothing is removed for that: which of them shows is decided when the lines are read.

Traps of the library, each closed here and by a test:

- A peer id that is used twice mangles both sides without an error. Every document that is opened gets a new one.
- Two documents that are made from one file would hold every line twice. The first changes are made under a peer id
  that is a hash of the lines: equal files make equal changes, which merge into one.
- The library raises BaseException itself, and silently replaces bytes that are not UTF-8: `_refusing`, `_stored`.
- It packs copies: a small one may unpack to gigabytes. What other instances send is looked at first (`try_copy.py`).
- It silently ignores a copy without early history whose beginning it does not know, and refuses changes that build on
  history which it no longer has: both are `HistoryMissing` here, and the caller takes the whole copy (`shared.py`).
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import cast

from loro import ID, CounterSpan, ExportMode, IdSpan, LoroDoc, VersionVector

from holdfast.errors import BadUpdate, HistoryMissing
from holdfast.instances.elements import (
    Author,
    Brought,
    SharedLine,
    as_shown,
    gone_places,
    lowest_kept,
    numbered,
    withdrawal,
)
from holdfast.memory.lines import changes, entry_hash, key_of

Version = bytes  # which changes a document knows; opaque outside of this module
LINES, GONE = "lines", "gone"
NOTHING: Version = VersionVector().encode()
CHANGES_MAX = 200_000  # in what another instance sends: a minute of work if all are equal lines


class LineDocument:
    """See the head of the module. Not safe for several threads."""

    def __init__(self, data: bytes | None = None) -> None:
        """With new peer id: never continue one that was stored. Raises BadUpdate."""
        self._doc = LoroDoc()
        self._read: tuple[list[SharedLine], list[SharedLine]] | None = None  # what was read of this version
        if data is not None:
            with _refusing:
                self._doc.import_(data)

    @classmethod
    def from_lines(cls, lines: Sequence[str]) -> LineDocument:
        """The document of a file that no instance has shared yet; equal lines make equal documents."""
        if not lines:
            return cls()
        text = "\n".join(lines).encode(errors="surrogateescape")
        first = LoroDoc()
        first.peer_id = int.from_bytes(hashlib.sha256(b"holdfast/genesis/1\0" + text).digest()[:8]) >> 1
        found, used = first.get_list(LINES), dict[str, int]()
        for line in lines:
            used[line] = used.get(line, -1) + 1
            found.push([_stored(line), used[line]])
        first.commit()
        return cls(first.export(ExportMode.Snapshot()))

    def lines(self) -> list[str]:
        return [one.text for one in self.shown()]

    def shown(self) -> list[SharedLine]:
        """The lines that a file shows, with who brought them in."""
        return self._look()[1]

    def elements(self) -> list[SharedLine]:
        """All lines, also those that are shown as one."""
        return self._look()[0]

    def change_to(
        self, lines: Sequence[str], author: Author, *, known: LineDocument | None = None, steady: Collection[str] = ()
    ) -> bool:
        """Bring in and remove lines, so that these are shown; whether anything had to change.
        An entry that was removed stays away where `author.ours` has it. `known`: another document of the same file,
        which knows who brought in some of the lines, and what was removed. `steady`: lines that nobody has moved here:
        what is moved is brought in again, and stays where another instance removes it meanwhile."""
        (elements, shown), gone = self._look(), self.gone()
        if gone:
            lines = [line for line in lines if entry_hash(line) not in gone or key_of(line) not in author.ours]
        before = () if known is None else known.shown()
        also_gone = frozenset[str]() if known is None else known.gone() - gone
        if [one.text for one in shown] == list(lines) and not also_gone:
            return False
        kept, gaps = lowest_kept(shown, *changes([one.text for one in shown], lines, steady=steady))
        stay = [one for one, stays in zip(shown, kept, strict=True) if stays]
        removed = [one for one, stays in zip(shown, kept, strict=True) if not stays]
        deletes = {place for one in removed for place in one.places}
        deletes |= gone_places(elements, gone)
        new = numbered(stay, (*sorted(removed, key=lambda one: one.number), *before), gaps, author)
        inserts = {shown[at].places[0] if at < len(shown) else len(elements): gap for at, gap in new.items()}
        self._read = None
        with _refusing:
            found = self._doc.get_list(LINES)
            for place in sorted(deletes | inserts.keys(), reverse=True):
                if place in deletes:
                    found.delete(place, 1)
                for at, (text, *rest) in enumerate(inserts.get(place, ())):
                    found.insert(place + at, [_stored(str(text)), *rest])
            self._note_gone(
                {entry_hash(one.text) for one in removed} | also_gone, {entry_hash(line) for line in lines}, gone
            )
            self._doc.commit()
        return True

    def tell_apart(
        self,
        added: Mapping[str, int],
        removed: Mapping[str, int],
        since: Version,
        author: Author,
        *,
        past: LineDocument | None = None,
        foreign: Collection[Brought] = (),
    ) -> frozenset[str]:
        """A file that showed this document as it was at `since` has got and lost these lines; but other instances have
        brought in lines with the same words meanwhile. What was `added` (with how often the file had it before: a copy
        is a line too) is kept beside theirs, so that it stays where they remove theirs; of what was `removed` (with how
        often the file still has it) only the elements are that the file showed, and the result has the words of which
        others stay. A line that was only moved meanwhile is no new one. `past`: the document that still has that
        version, where it is another one. `foreign`: what that version has and the file never showed.
        Raises HistoryMissing."""
        if not (added or removed) or (since == self.version() and not foreign):
            return frozenset()
        elements, _ = self._look()
        wanted = [at for at, one in enumerate(elements) if one.text in added or one.text in removed]
        with _refusing:
            found, known = self._doc.get_list(LINES), VersionVector.decode(since)
            new = {at for at in wanted if (id_ := found.get_id_at(at)) is not None and not known.includes_id(id_)}
        new |= {at for at in wanted if elements[at].brought in foreign}
        if not new:
            return frozenset()
        then = (past or self)._look_at(since)[0] if removed else ()
        before = {one.brought for one in then}.difference(foreign)
        before |= {(text, author.instance, author.at_ms) for text in removed}  # what this very change brought in
        numbers = dict[str, set[int]]()  # of equal lines the lowest ones stay, as in `lowest_kept`
        for one in then:
            if one.brought in before:
                numbers.setdefault(one.text, set()).add(one.number)
        stay = {(text, number) for text, left in removed.items() for number in sorted(numbers.get(text, ()))[:left]}
        lost = [at for at in wanted if (one := elements[at]).text in removed and (one.text, one.number) not in stay]
        fresh = {one.text for at in new.intersection(lost) if (one := elements[at]).brought not in before}
        like = [at for at in new if (one := elements[at]).text in added and one.number >= added[one.text]]
        beside = {elements[at].text: at for at in sorted(like, reverse=True)}
        deletes = {
            at for at in lost if (one := elements[at]).text in fresh and (at not in new or one.brought in before)
        }
        self._read = None
        with _refusing:
            for place in sorted(deletes | set(beside.values()), reverse=True):
                if place in deletes:
                    found.delete(place, 1)
                else:
                    text = elements[place].text
                    found.insert(place, [_stored(text), elements[place].number, author.instance, author.at_ms])
            self._doc.commit()
        return frozenset(fresh)

    def brought_since(self, since: Version, lines: Collection[str]) -> set[Brought]:
        """The elements of these lines that a document of that version does not know."""
        elements, _ = self._look()
        wanted = [at for at, one in enumerate(elements) if one.text in lines]
        with _refusing:
            found, known = self._doc.get_list(LINES), VersionVector.decode(since)
            new = [at for at in wanted if (id_ := found.get_id_at(at)) is not None and not known.includes_id(id_)]
        return {elements[at].brought for at in new}

    def keep_beside(self, lines: Collection[str], author: Author, *, first: Collection[str]) -> None:
        """A file has these lines, each as often as it is here, and it is not known whether they are those that the
        document has. Each gets an element of this instance, of no time, so that it stays where others remove theirs.
        `first`: of these lines not those that were there before the instances shared the file."""
        elements, shown = self._look()
        mine = {one.text for one in elements if one.instance == author.instance and not one.at_ms}
        mine |= {one.text for one in elements if not one.instance and one.text in first}
        left, wanted = Counter(line for line in lines if line not in mine), dict[int, SharedLine]()
        for one in sorted(shown, key=lambda one: one.number):
            if left[one.text] > 0:
                left[one.text] -= 1
                wanted[one.places[0]] = one
        self._read = None
        with _refusing:
            found = self._doc.get_list(LINES)
            for place, one in sorted(wanted.items(), reverse=True):
                found.insert(place + 1, [_stored(one.text), one.number, author.instance, 0])
            self._doc.commit()

    def only_beside(self, version: Version | None = None) -> frozenset[str]:
        """The lines that are, or were then, shown only because of `keep_beside`. Raises HistoryMissing."""
        elements, shown = self._look() if version is None else self._look_at(version)
        return frozenset(
            one.text for one in shown if all(elements[at].instance and not elements[at].at_ms for at in one.places)
        )

    def withdrawn_since(self, since: Version) -> set[str]:
        """The marks of a person's lines that were brought in and removed since that version, as far as the history is
        kept; also of those that its beginning has. Another document may have got such a line without its removal, and
        keeps it away with the mark."""
        first = set[Brought]()
        with _refusing:
            begin = VersionVector.decode(since)
            if self.begins_after(since):
                begin = self._doc.frontiers_to_vv(self._doc.shallow_since_frontiers) or self._doc.oplog_vv
                first = self.brought_at(begin.encode())
            history = json.loads(self._doc.export_json_updates(begin, self._doc.oplog_vv))
        ops = (
            op for change in history["changes"] for op in change["ops"] if op["container"] == f"cid:root-{LINES}:List"
        )
        values = (value for op in ops if op["content"]["type"] == "insert" for value in op["content"]["value"])
        brought = {_element(value).brought for value in values}
        left = (first | brought).difference(one.brought for one in self.elements())
        return {withdrawal(one) for one in left if one[2] and not entry_hash(one[0])}

    def forget(self, entries: Collection[str]) -> None:
        """These entries (hashes) were removed from the file before the document knew them; or lines of a person (marks)
        from another document."""
        self._read = None
        with _refusing:
            for entry in set(entries) - self.gone():
                self._doc.get_map(GONE).insert(entry, True)
            self._doc.commit()

    def _note_gone(self, removed: set[str], there: set[str], gone: frozenset[str]) -> None:
        notes = self._doc.get_map(GONE)
        for mark in removed - there - {""}:
            notes.insert(mark, True)
        for mark in there & gone:
            notes.delete(mark)

    def version(self) -> Version:
        return self._doc.oplog_vv.encode()

    def knows(self, version: Version) -> bool:
        with _refusing:
            return self._doc.oplog_vv.includes_vv(VersionVector.decode(version))

    def begins_after(self, version: Version) -> bool:
        """Whether the history that is kept here begins after that version."""
        with _refusing:
            if not self._doc.is_shallow():
                return False
            # `shallow_since_vv` is one change less: at that version the library shows the lines of the beginning.
            begin = self._doc.frontiers_to_vv(self._doc.shallow_since_frontiers)
            return begin is None or not VersionVector.decode(version).includes_vv(begin)

    def lines_at(self, version: Version) -> list[str]:
        """The lines as they were then. Raises HistoryMissing."""
        return [one.text for one in self._look_at(version)[1]]

    def brought_at(self, version: Version) -> set[Brought]:
        """The elements as they were then. Raises HistoryMissing."""
        return {one.brought for one in self._look_at(version)[0]}

    def gone_at(self, version: Version) -> frozenset[str]:
        """The hashes of the entries that were removed then. Raises HistoryMissing."""
        if self.begins_after(version) or not self.knows(version):
            raise HistoryMissing("the document no longer has this version, or does not have it yet")
        with _refusing:
            self._doc.checkout(self._doc.vv_to_frontiers(VersionVector.decode(version)))
            try:
                return self.gone()
            finally:
                self._doc.checkout_to_latest()

    def _look_at(self, version: Version) -> tuple[list[SharedLine], list[SharedLine]]:
        if version == self.version():
            return self._look()
        if self.begins_after(version) or not self.knows(version):
            raise HistoryMissing("the document no longer has this version, or does not have it yet")
        with _refusing:
            self._doc.checkout(self._doc.vv_to_frontiers(VersionVector.decode(version)))
            self._read = None
            try:
                return self._look()
            finally:
                self._read = None
                self._doc.checkout_to_latest()

    def changes_since(self, version: Version) -> bytes:
        """What a document of that version lacks. Raises HistoryMissing, BadUpdate."""
        if self.begins_after(version):
            raise HistoryMissing("the history since this version is no longer kept")
        with _refusing:
            return self._doc.export(ExportMode.Updates(VersionVector.decode(version)))

    def count_since(self, version: Version) -> int:
        """How many changes a document of that version lacks, as far as they are kept here."""
        with _refusing:
            begin = self._begin(version).to_spans().inner()
            now = self._doc.oplog_vv.to_spans().inner()
        return sum(end - begin.get(peer, (0, 0))[1] for peer, (_, end) in now.items())

    def pieces_since(self, version: Version, *, most: int, bytes_most: int) -> list[tuple[Version, bytes]]:
        """What a document of that version lacks, in pieces that it can take one after the other; with each the version
        that it makes. One change that is larger is a piece alone. Raises BadUpdate."""
        found: list[tuple[Version, bytes]] = []
        with _refusing:
            known = self._begin(version)
            waiting = self._slices(known, most)[::-1]
            while waiting:
                spans = waiting.pop()
                data = self._doc.export(ExportMode.UpdatesInRange(spans))
                if len(data) > bytes_most and (halves := _halves(spans)):
                    waiting += reversed(halves)
                    continue
                for one in spans:
                    known.set_end(ID(one.peer, one.counter.end))
                found.append((known.encode(), data))
        return found

    def _slices(self, known: VersionVector, most: int) -> list[list[IdSpan]]:
        """What is not known, as spans: each slice builds on those before it. So it is in the order of the logical
        clock of the changes: a change is later than all that it builds on."""
        begin, changes = known.to_spans().inner(), list[tuple[int, int, int, int]]()
        for peer, (_, end) in self._doc.oplog_vv.to_spans().inner().items():
            at = begin.get(peer, (0, 0))[1]
            while at < end and (change := self._doc.get_change(ID(peer, at))) is not None:
                until = min(change.id.counter + change.len, end)
                changes.append((change.lamport, peer, at, until))
                at = until
        slices, room = list[list[IdSpan]](), 0
        for _, peer, at, end in sorted(changes):
            while at < end:
                if not room:
                    slices.append([])
                    room = most
                until = min(at + room, end)
                slices[-1].append(IdSpan(peer, CounterSpan(at, until)))
                at, room = until, room - (until - at)  # noqa: PLW2901 - a long change is cut
        return slices

    def _begin(self, version: Version) -> VersionVector:
        """That version, or the first one that is still kept."""
        if not self.begins_after(version):
            return VersionVector.decode(version).intersection(self._doc.oplog_vv)
        return self._doc.frontiers_to_vv(self._doc.shallow_since_frontiers) or self._doc.oplog_vv

    def take(self, changes: bytes) -> bool:
        """Take in changes of another document; whether they were all taken. False: changes before them are missing,
        and have to be sent again with them.
        Raises BadUpdate, HistoryMissing: they build on history that is no longer kept here; nothing has changed."""
        self._read = None
        with _refusing:
            return self._doc.import_(changes).pending is None

    def copy(self, *, keep_from: Version | None = None) -> bytes:
        """The whole document as bytes; with `keep_from`, without the history before that version."""
        with _refusing:
            if keep_from is None or self.begins_after(keep_from) or keep_from == NOTHING:
                return self._doc.export(ExportMode.Snapshot())
            version = VersionVector.decode(keep_from).intersection(self._doc.oplog_vv)
            return self._doc.export(ExportMode.ShallowSnapshot(self._doc.vv_to_frontiers(version)))

    def whole(self) -> bytes:
        """The document for another instance; not packed, unless early history was dropped."""
        with _refusing:
            return self.copy() if self._doc.is_shallow() else self._doc.export(ExportMode.Updates(VersionVector()))

    def _look(self) -> tuple[list[SharedLine], list[SharedLine]]:
        """The elements, and the lines that they show. Read once for each version; not to be changed."""
        if self._read is None:
            values = cast("list[object]", self._doc.get_list(LINES).get_value())
            values.reverse()
            elements = [_element(values.pop()) for _ in range(len(values))]  # a large document is not there twice
            self._read = elements, as_shown(elements, self.gone())
        return self._read

    def gone(self) -> frozenset[str]:
        """The hashes of the entries that were removed."""
        return frozenset(cast("dict[str, object]", self._doc.get_map(GONE).get_value()))


def changes_in(data: bytes) -> int:
    """How many changes are in there. A copy is unpacked for that. Raises BadUpdate."""
    with _refusing:
        found = LoroDoc.decode_import_blob_meta(data, True)
        begin, end = (one.to_spans().inner() for one in (found.partial_start_vv, found.partial_end_vv))
    return sum(last for _, last in end.values()) - sum(last for _, last in begin.values())


def covers(one: Version, other: Version) -> bool:
    """Whether `one` knows all that `other` does. Raises BadUpdate."""
    with _refusing:
        return VersionVector.decode(one).includes_vv(VersionVector.decode(other))


def common(one: Version, other: Version) -> Version:
    """What both know. Raises BadUpdate."""
    with _refusing:
        return VersionVector.decode(one).intersection(VersionVector.decode(other)).encode()


def same(one: Version, other: Version) -> bool:
    return one == other or rank_of(one) == rank_of(other)


def rank_of(version: Version) -> tuple[object, ...]:
    """Of two versions, the one that knows more changes is the greater one; two that differ are never equal.
    Raises BadUpdate."""
    with _refusing:
        spans = VersionVector.decode(version).to_spans().inner()
    return sum(end for _, end in spans.values()), sorted(spans.items())


def _stored(line: str) -> str | bytes:
    """The library would replace what is not UTF-8."""
    try:
        line.encode()
    except UnicodeEncodeError:
        return line.encode(errors="surrogateescape")
    return line


def _element(value: object) -> SharedLine:
    """An element of any instance: the same on every instance, and always one line."""
    fields = cast("list[object]", value) if isinstance(value, list) else [value]
    if fields and isinstance(fields[0], bytes):
        fields = [fields[0].decode(errors="surrogateescape"), *fields[1:]]
    match fields:
        case [str(text), int(number), str(instance), int(at_ms), str(task)]:
            found = SharedLine(text=text, number=number, instance=instance, at_ms=at_ms, task=task)
        case [str(text), int(number), str(instance), int(at_ms)]:
            found = SharedLine(text=text, number=number, instance=instance, at_ms=at_ms)
        case [str(text), int(number)]:
            found = SharedLine(text=text, number=number)
        case _:
            found = SharedLine(text=str(fields))
    if "\n" in found.text:
        found.text = found.text.replace("\n", " ")
    return found


def which_has(version: Version, *documents: LineDocument) -> LineDocument | None:
    """The first one that still has this version."""
    return next((one for one in documents if one.knows(version) and not one.begins_after(version)), None)


class _Refusing:
    """The library's own errors are BaseException itself, or a panic of it; others pass."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if type(error) is BaseException and "shallow" in str(error):
            raise HistoryMissing(f"the changes build on history that is no longer kept here: {error}") from error
        if type(error) is BaseException or type(error).__name__ == "PanicException":
            raise BadUpdate(f"the changes to the document cannot be read: {error}") from error


_refusing = _Refusing()


def _halves(spans: Sequence[IdSpan]) -> list[list[IdSpan]]:
    """The same changes in two slices; none where there is one change."""
    room = sum(one.counter.end - one.counter.start for one in spans) // 2
    if not room:
        return []
    first, second = list[IdSpan](), list[IdSpan]()
    for one in spans:
        start, end = one.counter.start, one.counter.end
        cut = min(start + room, end)
        room -= cut - start
        if start < cut:
            first.append(IdSpan(one.peer, CounterSpan(start, cut)))
        if cut < end:
            second.append(IdSpan(one.peer, CounterSpan(cut, end)))
    return [first, second]
