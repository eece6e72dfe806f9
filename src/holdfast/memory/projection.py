"""From the journal's remarks to the memory files.

A remark is durable in the journal before anything here begins; the files follow. The order of a
pass: each file with the remarks that are for it, then the position, then this
folder's mark in the journal that lets retention erase them. A crash between any two leaves the position
behind the files: the remarks are read again, and each that is there already is known by its
id. So an entry is in its file once, however often a pass was broken off.

At the start every file that may have been left half way is compared: what was put aside is joined in,
and what is missing behind the position is written.

True of one memory file at all times, whatever others do to it: a line that was in the file when we read
it, that an editor saved while we wrote, or that we were asked to add, is in the file afterwards, unless
its writer removed it. Each round reads what came out of the last exchange; where it is not what had
been read, that is an editor's save, and it is merged with what is in the file by now, at the version
that our last write left.

The order: read, also what earlier passes left aside; merge; write the next sidecar, which names the asides,
beside the new version; exchange; look at what came out, again until it is what was expected; the sidecar gets its
place; then the asides are removed. File and sidecar change as one: a crash between the two leaves a next sidecar
whose version is in its place, and the next pass begins with that one. So it knows which lines Holdfast brought,
and what people have changed since. What was displaced and is not named by it is an editor's save: the next pass
joins it in, but for lines that the crashed pass removed from the version before, and adds what is not there yet
by its id.

A writer holds the lock of the place: two passes of ours would only disturb each other.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import secrets
import time
from collections.abc import Collection, Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import msgspec

from holdfast.errors import MemoryFileBusy
from holdfast.host.private_files import ensure_private_folder, open_private
from holdfast.journal.contract import Journal, KeptRemark, Remark, RemarkTo
from holdfast.layout.agent_home import MemoryPlace
from holdfast.memory import lines, sidecar
from holdfast.memory.exchange import (
    exchange,
    hash_of,
    is_placed,
    is_taken,
    left_asides,
    left_notes,
    note_of,
    put_down,
    read_quiet,
)
from holdfast.memory.heartbeat import FreePart
from holdfast.memory.journal_position import close_position, find_position
from holdfast.memory.lines import Added, Gone, Merged, day_of, entry_id, heading, key_of, rendered
from holdfast.memory.shared_lines import SharedLines, Start, merged_with, unequal

ROUNDS_MAX = 1_000  # an editor that saves each time we do; each round waits a little longer
ROUND_WAIT_S = 0.002
ROUND_WAIT_MAX_S = 0.1
LOCK_WAIT_S = 30.0
LOCK_LOOK_S = 0.005
ASIDES_MAX = 100  # looked at in one pass
UNSURE_MAX = 10_000


class Written(msgspec.Struct, frozen=True, kw_only=True):
    """What a pass over one file did, for logs and people."""

    file: str
    added: int = 0
    rounds: int = 0
    put_back: int = 0  # lines of ours that a save from before them had not
    removed: int = 0  # lines of ours that a person removed
    duplicates: int = 0
    near: tuple[tuple[str, str], ...] = ()
    joined: int = 0  # asides whose lines were joined in
    left: int = 0  # asides that a process still has open: to be looked at again
    was_gone: bool = False
    torn: bool = False
    unsure: tuple[str, ...] = ()  # lines that one side of a merge had, where it was not known which side changed
    at_ms: int = 0

    @property
    def worth_telling(self) -> bool:
        return bool(
            self.put_back or self.removed or self.near or self.joined or self.was_gone or self.torn or self.unsure
        )


@contextmanager
def locked(place: MemoryPlace, *, wait_s: float = LOCK_WAIT_S) -> Generator[None]:
    """Hold the place. Raises MemoryFileBusy where another process keeps it."""
    ensure_private_folder(place.private)
    ensure_private_folder(place.asides)
    fd = open_private(place.lock, os.O_RDWR | os.O_CREAT)
    try:
        until = time.monotonic() + wait_s
        while True:
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= until:
                    raise MemoryFileBusy(
                        f"another process has been writing the memory of {place.folder} for {wait_s:g} s"
                    ) from None
                time.sleep(LOCK_LOOK_S)
        yield
    finally:
        os.close(fd)


def write_file(place: MemoryPlace, path: Path, new: Sequence[str], *, heading: Sequence[str], now_ms: int) -> Written:
    """Add these lines to the file, those that are not there yet. Hold the place's lock.
    `new`: whole lines, each with a mark. Raises MemoryFileBusy where other writers leave no room for ours; nothing is
    lost then."""
    return _Pass(place, path, heading=heading, now_ms=now_ms).run(new)


def merge_file(
    place: MemoryPlace, path: Path, shared: SharedLines, *, now_ms: int, part: FreePart | None = None
) -> Written:
    """Give the file what other instances have changed, and the document what was changed in the file. Hold the place's
    lock, and report what it did (`keep_report`), but for `unsure`: that is in the report on return. `part`: the part of
    the file that is shared, where it is not all of it. Raises as `write_file` does, and BadInput where that part cannot
    be told from the rest."""
    return _Pass(place, path, heading=(), now_ms=now_ms, shared=shared, part=part).run(())


class _Pass:
    def __init__(
        self,
        place: MemoryPlace,
        path: Path,
        *,
        heading: Sequence[str],
        now_ms: int,
        shared: SharedLines | None = None,
        part: FreePart | None = None,
    ) -> None:
        self._part = part
        self._place = place
        self._path = path
        self._heading = heading
        self._now_ms = now_ms
        self._stored = sidecar.load_state(place.sidecar(path))
        self._before = self._stored.base  # what the version had that was displaced last
        self._state = self._take_up(self._stored)
        self._base = None if self._state.base is None else lines.split(self._state.base)[0]
        self._next: Path | None = None  # the sidecar of the last exchange, where that went as expected
        self._recent = {one.key: one for one in self._state.recent}
        self._write = self._state.write
        self._life = self._state.life if self._state.base is not None else secrets.token_hex(8)
        self._gone = {one.entry: one for one in self._state.gone}
        self._shared = shared
        self._start: Start | None = None
        self._asides: list[tuple[Path, bytes]] = []  # whose content is taken
        self._told = Written(file=str(path.relative_to(place.folder)), at_ms=now_ms)

    def run(self, new: Sequence[str]) -> Written:
        theirs = self._read()
        fresh = self._fresh(new, theirs) if new else []
        left = self._read_asides()
        if self._shared is not None:
            self._begin(self._shared, theirs)
        merged = self._join(left, self._merged(theirs, fresh))
        if self._heading and merged and not any(line.strip() for line in theirs):
            merged = [*self._heading, *(line for line in merged if line not in self._heading)]
        self._tell(added=len(fresh))
        if self._raw is None and not merged:
            return self._told
        if self._told.unsure:  # before the lines are in the file: a pass that is killed there would never tell
            told = Written(file=self._told.file, at_ms=self._now_ms, unsure=self._told.unsure)
            keep_report(self._place, [told])
        if self._data(merged) != self._raw:
            merged = self._put(theirs, merged)
        self._finish(merged)
        return self._told

    def _fresh(self, new: Sequence[str], theirs: Sequence[str]) -> list[str]:
        # What we wrote before and a save from before it lacks is put back by the merge, not added once more: another
        # process may have read the same remarks and come first.
        known = {key_of(line) for line in (*theirs, *(self._base or ()))}
        # Nor an entry that a person removed: it may have come from another instance before the journal's row was read.
        return [line for line in new if key_of(line) not in known and lines.entry_hash(line) not in self._gone]

    def _take_up(self, state: sidecar.State) -> sidecar.State:
        """The sidecar of a pass that was killed after it had put its version in place; others are removed."""
        left = [(sidecar.load_state(note), note, aside) for note, aside in left_notes(self._path, self._place.asides)]
        for found, note, aside in sorted(left, key=lambda one: one[0].write):
            newer = found.write > state.write and (state.base is None or found.life == state.life)
            if newer and is_placed(aside, self._path):
                self._before, state = state.base, found
            else:
                note.unlink()
        return state

    def _read(self) -> list[str]:
        raw = read_quiet(self._path)
        if raw is None and self._state.base is not None:
            self._tell(was_gone=True)  # lost, not edited: an editor leaves an empty file
        self._raw = raw
        text = (self._state.base or "") if raw is None else self._text(raw)
        if self._base is not None and text == self._state.base:  # as our last write left it: no second list of it
            return self._base
        found, torn = lines.split(text)
        self._tell(torn=torn)
        return found

    def _text(self, raw: bytes, *, newest: bool = True) -> str:
        """Bytes that are not UTF-8 come back as they are when the text is written."""
        shared = raw if self._part is None else self._part.opened(raw, newest=newest)
        return shared.decode(errors="surrogateescape")

    def _data(self, merged: Sequence[str]) -> bytes:
        text = lines.joined(merged).encode(errors="surrogateescape")
        return text if self._part is None else self._part.closed(text)

    def _begin(self, shared: SharedLines, theirs: Sequence[str]) -> None:
        gone = {one.entry: one.write for one in self._gone.values()}
        back, _ = self._unseen(theirs)
        file = [*theirs, *(line for line in self._base or () if key_of(line) in back)]
        state = self._state
        self._start = shared.begin(
            self._base, state.write, gone, self._recent.keys(), file=file, life=self._life, merged=state.merged
        )
        self._tell(near=self._start.near)
        self._tell_unsure(self._start.unsure)

    def _unseen(self, theirs: Sequence[str]) -> tuple[set[str], set[str]]:
        there = {key for line in theirs if (key := key_of(line)) in self._recent}
        return lines.unseen(self._recent.values(), there, now_ms=self._now_ms)

    def _merged(self, theirs: list[str], fresh: Sequence[str]) -> list[str]:
        """Theirs and ours, at the version of our last write."""
        if self._start is not None:
            return self._merge(self._start.base, self._start.lines, theirs)
        base = self._base
        if base is None:
            return [*theirs, *fresh]
        return self._merge(base, [*base, *fresh], theirs)

    def _merge(self, base: list[str] | None, ours: list[str], theirs: list[str]) -> list[str]:
        """`base` is None where it is not known what both had: then nothing counts as removed."""
        back, removed = self._unseen(theirs)
        for key in removed:
            del self._recent[key]
        for line in base or ():
            if key_of(line) in removed and (entry := lines.entry_hash(line)):
                self._gone[entry] = Gone(write=self._write + 1, at_ms=self._now_ms, entry=entry)
        shown = {key_of(line) for line in ours} & back
        for key in shown:
            self._recent[key] = msgspec.structs.replace(self._recent[key], put_back_ms=self._now_ms)
        base = None if base is None else [line for line in base if key_of(line) not in back]
        if self._start is not None:
            merged = merged_with(ours, theirs, base=base, gone=self._start.gone, ours=self._recent.keys())
            if base is None:
                self._tell_unsure(unequal(ours, theirs))
        else:
            merged = lines.merge(base or (), ours, theirs)
        self._count(merged)
        self._tell(put_back=self._told.put_back + len(shown), removed=self._told.removed + len(removed))
        return merged.lines

    def _read_asides(self) -> list[list[str]]:
        """The lines that earlier passes displaced and did not come to take, or that were written since."""
        left: list[list[str]] = []
        for aside in left_asides(self._path, self._place.asides)[:ASIDES_MAX]:
            content = read_quiet(aside) or b""
            if not is_taken(aside, content) and self._state.taken.get(aside.name) != hash_of(content):
                left.append(lines.split(self._text(content, newest=False))[0])
            self._asides.append((aside, content))
        return left

    def _join(self, left: Sequence[Sequence[str]], merged: list[str]) -> list[str]:
        before = None if self._before is None else lines.split(self._before)[0]
        for one in left:
            joined = lines.joined_in(before, merged, one)
            if len(joined.lines) > len(merged):
                self._tell(joined=self._told.joined + 1)
            if self._start is not None and self._base is None:
                self._tell_unsure(set(joined.lines).difference(merged))
            merged = joined.lines
            self._count(joined)
        return merged

    def _tell_unsure(self, some: Collection[str]) -> None:
        self._tell(unsure=tuple(sorted({*self._told.unsure, *some}))[:UNSURE_MAX])

    def _put(self, theirs: list[str], merged: list[str]) -> list[str]:
        """Put the merged version into its place, again for each save that comes between."""
        folder = self._path.parent
        if folder.is_symlink() or not folder.is_dir():  # one that a person has made keeps its mode
            ensure_private_folder(folder)
        base = theirs if self._base is None else self._base
        base = base if self._start is None else self._start.base or theirs
        expected, data = self._raw, self._data(merged)
        for number in range(ROUNDS_MAX):
            self._write += 1
            had = [] if expected is None else lines.split(self._text(expected, newest=False))[0]
            aside, came = self._exchange(merged, data, expected, had)
            self._tell(rounds=number + 1)
            others = [] if came is None else lines.split(self._text(came))[0]
            # What a save from between lacks of the version that was read, its writer has removed.
            self._recent = self._with_added(merged, [*others, *had])
            if aside is None or came is None:
                return merged
            self._asides.append((aside, came))
            if came == expected:
                return merged
            merged, written = self._merge(base, merged, others), data
            data = self._data(merged)
            if data == written:
                return merged
            expected = written
            time.sleep(min(ROUND_WAIT_MAX_S, ROUND_WAIT_S * number))
        raise MemoryFileBusy(f"another program changes {self._path} each time Holdfast writes it")

    def _exchange(
        self, merged: Sequence[str], data: bytes, expected: bytes | None, had: Sequence[str]
    ) -> tuple[Path | None, bytes | None]:
        """Put this version in its place, with the sidecar that is right if what is expected comes out; what came."""
        state = self._after(merged, self._with_added(merged, had))

        def note(name: str) -> bytes:
            self._next = note_of(self._place.asides / name)
            more = {} if expected is None else {name: hash_of(expected)}
            return sidecar.state_bytes(replace(state, taken=state.taken | more))

        aside = exchange(self._path, data, asides=self._place.asides, note=note)
        came = None if aside is None else read_quiet(aside)
        if came != expected:
            self._next = None
        return aside, came

    def _with_added(self, merged: Sequence[str], before: Sequence[str]) -> dict[str, Added]:
        """With the lines that this write brings in: who loaded the file before has not seen them."""
        had, recent = set(before), dict(self._recent)
        for line in merged:
            if line not in had and lines.is_telling(line):
                key = key_of(line)
                known = recent.pop(key, None) or Added(first=self._write, write=0, at_ms=0, key=key)
                recent[key] = msgspec.structs.replace(known, write=self._write, at_ms=self._now_ms)
        return recent

    def _after(self, merged: Sequence[str], recent: dict[str, Added]) -> sidecar.State:
        """What the sidecar says when the file has these lines."""
        gone = self._gone | self._removed(merged)
        there = {lines.removal_mark(line) for line in merged} if gone else set[str]()
        kept = [one for one in gone.values() if one.entry not in there and self._now_ms - one.at_ms < lines.RECENT_MS]
        merged_at = self._state.merged
        if self._start is not None and self._write > self._state.write:
            merged_at = self._start.noted(self._write, merged)
        return sidecar.State(
            base=lines.joined(merged),
            write=self._write,
            life=self._life,
            merged=merged_at,
            recent=tuple(lines.shortened(list(recent.values()), now_ms=self._now_ms)),
            gone=tuple(kept[-lines.RECENT_MAX :]),
            taken={aside.name: hash_of(content) for aside, content in self._asides},
        )

    def _finish(self, merged: Sequence[str]) -> None:
        if lines.joined(merged) != self._state.base and self._write == self._state.write:
            self._write += 1  # what an edit alone has changed counts as well: a document tells by it which is newer
        path = self._place.sidecar(self._path)
        if self._next is not None:
            sidecar.put_state(path, self._next)
        elif replace(state := self._after(merged, self._recent), taken={}) != replace(self._stored, taken={}):
            sidecar.save_state(path, state)
        for note, _ in left_notes(self._path, self._place.asides):
            note.unlink()
        if self._shared is not None:
            self._shared.finish(merged, self._write, self._recent.keys(), life=self._life)
        self._tell(left=sum(not put_down(aside, taken) for aside, taken in self._asides))

    def _removed(self, merged: Sequence[str]) -> dict[str, Gone]:
        """The document may still have a line that a write brought from it: the pass may have died before it could note
        what the file shows. A line that was written into the file is not noted: one with these words that the document
        has by then is another instance's."""
        if self._base is None or not self._place.document(self._path).exists():
            return {}
        brought = {one.key for one in self._state.recent}
        left = set(self._base).difference(merged)
        marks = [lines.removal_mark(line) for line in left if lines.entry_hash(line) or key_of(line) in brought]
        return {mark: Gone(write=self._write, at_ms=self._now_ms, entry=mark) for mark in sorted(marks)}

    def _count(self, merged: Merged) -> None:
        self._tell(duplicates=self._told.duplicates + merged.duplicates, near=(*self._told.near, *merged.near))

    def _tell(self, **fields: object) -> None:
        self._told = msgspec.structs.replace(self._told, **fields)


__all__ = ["MEMORY_HEADING", "project_now", "write_remarks", "write_straight"]

BATCH = 500
LOOK_AGAIN_S = 0.1  # while a process has a displaced file open
LOOKS_MAX = 20
MEMORY_HEADING = ("# Memory", "")


async def project_now(journal: Journal, place: MemoryPlace, *, sweep: bool = True) -> list[Written]:
    """Write what the journal has for the files, and join in what was left aside.
    Safe beside other processes that do the same. With `sweep=False` only files with new lines are looked at. Raises
    MemoryFileBusy, ReadOnly, JournalFull, SymlinkRefused and their like: what is not written stays in the journal."""
    told: list[Written] = []
    position = await find_position(journal, place)
    while remarks := await journal.remarks_after(position, limit=BATCH):
        told += await asyncio.to_thread(write_remarks, place, remarks, journal.journal_id, now_ms=journal.now_ms())
        position = remarks[-1].number
        await close_position(journal, place, position)
    if sweep or any(one.left for one in told):
        told += await asyncio.to_thread(sweep_asides, place, journal.now_ms())
    return told


def write_remarks(
    place: MemoryPlace, remarks: Sequence[KeptRemark], journal_id: str = "", *, now_ms: int
) -> list[Written]:
    """Write these into their files; then the position."""
    files: dict[str, list[str]] = {}
    for kept in remarks:
        day = "" if kept.remark.to is RemarkTo.MEMORY else day_of(kept.at_ms)
        files.setdefault(day, []).append(line_of(kept))
    with locked(place):
        told = [_write(place, day, lines, now_ms) for day, lines in files.items()]
        newest = remarks[-1]
        known = sidecar.load_position(place.position)
        # Another process may be further: going back would write again what people have removed.
        if journal_id and (journal_id != known.journal_id or newest.number > known.number):
            position = sidecar.Position(journal_id=journal_id, number=newest.number, link=newest.link.hex())
            sidecar.save_position(place.position, position)
        keep_report(place, told)
    return told


def write_straight(place: MemoryPlace, remark: Remark, *, now_ms: int) -> list[Written]:
    """Into its file, where there is no journal to go through."""
    kept = KeptRemark(number=0, remark=remark, at_ms=now_ms, link=b"")
    return write_remarks(place, [kept], now_ms=now_ms)


def line_of(kept: KeptRemark) -> str:
    remark, timed = kept.remark, kept.remark.to is RemarkTo.DAY
    return rendered(
        id=entry_id(remark.remark_id), at_ms=kept.at_ms, text=remark.text, origin=remark.origin, timed=timed
    )


def sweep_asides(place: MemoryPlace, now_ms: int) -> list[Written]:
    """Join in what was displaced and not taken: of a pass that died, or by a writer in place.
    Also where a save from before our last write has put away what it added. Waits a moment for writers that still have
    a displaced file open."""
    told: list[Written] = []
    for _ in range(LOOKS_MAX):
        with locked(place):
            asides = {one.name for one in place.asides.iterdir()}
            days = {name[:10] for name in asides if lines.is_day(name[:10])}
            days |= {day_of(now_ms, back=back) for back in (0, 1)}
            passes = [_write(place, day, (), now_ms) for day in ("", *sorted(days))]
            keep_report(place, passes)
        told += passes
        if not any(one.left for one in passes):
            break
        time.sleep(LOOK_AGAIN_S)
    return told


def signature(place: MemoryPlace, now_ms: int) -> tuple[object, ...]:
    """Changes when a watched file was saved."""
    found: list[object] = []
    for path in (place.memory_file, *(place.day_file(day_of(now_ms, back=at)) for at in (0, 1))):
        try:
            entry = os.lstat(path)
            found.append((entry.st_ino, entry.st_mtime_ns, entry.st_size))
        except OSError:
            found.append(None)
    return tuple(found)


def _write(place: MemoryPlace, day: str, lines: Sequence[str], now_ms: int) -> Written:
    path = place.day_file(day) if day else place.memory_file
    head = heading(day) if day else MEMORY_HEADING
    try:
        return write_file(place, path, lines, heading=head, now_ms=now_ms)
    except OSError as error:
        raise MemoryFileBusy(f"Holdfast could not write {path}: {error}") from error


def keep_report(place: MemoryPlace, told: Sequence[Written]) -> None:
    sidecar.add_reports(place.report, [msgspec.to_builtins(one) for one in told if one.worth_telling])
