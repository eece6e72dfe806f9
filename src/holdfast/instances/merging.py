"""Merging memory with the other instances: reads what arrived, merges it into the files, sends what others lack.

An instance's newest envelope says everything that is still to be said: what any other instance is not known to have.
So it does not matter which envelopes before it were lost, late, repeated or out of order; only the newest one has to
arrive at last. What every instance has confirmed is left out of it again.

A change of one line must not send a megabyte that an instance which is away still lacks. So what grows large is moved
into a part, which is written once and stays as it is until all have confirmed what is in it. Parts are known by the
hash of their bytes: one that is torn or old is not the one that the newest envelope names, and is waited for.

The order: parts and envelope of others are read; their updates are taken and the documents stored; the files; the
documents with what the files show (`shared.py`); own parts, then the own newest envelope, then parts that no envelope
names any more are removed. A kill between any two leaves files that are whole and documents that the next pass goes on
with; an instance stores what it knows before it sends it to others. A new process begins with no parts of its own, and
sends what is not confirmed again.

Nobody waits for an instance that was enrolled and never started, or that is lost. The first document of a file is made
without those that have sent nothing (`_asked`); what they lack is kept for them, and history that they may need for
`HISTORY_MS`. One that comes back after that takes a whole document.

Of most files nothing is opened in a pass: a file that did not change, and that all have confirmed, is only looked at.
Which ones that are is in `instance/shared-memory.json`, with what `holdfast instance list` shows. An instance that only
waits closes the others too (`rest`). One that acts does not: it writes often, and each opening that is followed by a
write adds a peer id to the version of the document, for good.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from holdfast.errors import BadUpdate, HoldfastError
from holdfast.instances.channels import NEWEST, Channel
from holdfast.instances.envelope import Parcel, Part, Peers, digest_of, open_parcel, seal_parcel
from holdfast.instances.exchange import Heard, SentPart, chunks, in_pieces, without_data
from holdfast.instances.life import Rival, after_sending, begun, documents, forget, sending, two_folders
from holdfast.instances.line_document import NOTHING, Version, covers
from holdfast.instances.merge_state import PeerState, Signature, load_state, save_state, signature_of
from holdfast.instances.shared import Update
from holdfast.instances.shared_files import SharedFile
from holdfast.instances.try_copy import check_foreign
from holdfast.layout.agent_home import HEARTBEAT_FILE, MEMORY_FILE, MemoryPlace
from holdfast.memory.lines import day_of, is_day
from holdfast.memory.projection import Written, locked

NEWEST_DATA_BYTES = 4 * 1024  # in the newest envelope; what is more goes into a part
PARTS_MAX = 200  # of one instance; more are put together again
AGAIN_MS, AGAIN_MS_MAX = 5_000, 600_000  # until what is missing or refused is read again; then ever longer
LOOK_AGAIN_MS = 60_000  # at files that have no document yet
CHECK_MS = 600_000  # between two looks whether what an instance does not confirm is damaged
REST_MS = 10_000  # after the last pass
TURN_MS = 600_000  # so long the instance whose turn it is has time to make the first document; then the next one may
SILENT_MS = 3_600_000  # after so long an instance that others have heard of has no document that nobody else knows


class Merging:
    """The merges of one folder. One process at a time; not safe for several threads."""

    def __init__(
        self,
        place: MemoryPlace,
        channel: Channel,
        peers: Peers,
        key: bytes,
        *,
        roster: Sequence[bytes] = (),
        hear_roster: Callable[[Sequence[bytes]], None] = lambda _lines: None,
    ) -> None:
        self._place, self._channel, self._peers, self._key = place, channel, peers, key
        self._roster, self._hear_roster = tuple(roster), hear_roster
        self.tasks: dict[str, str] = {}  # which task said an entry, by its id
        self.state = load_state(place.instance)
        if set(peers.others) != set(self.state.peers):
            # Of an instance that is new nothing is known: every file is looked at again.
            kept = {name: self.state.peers.get(name, PeerState()) for name in peers.others}
            self.state = msgspec.structs.replace(self.state, peers=kept, settled={})
        self._files: dict[str, SharedFile] = {}
        self._heard = {name: Heard() for name in peers.others}
        self._sent: list[SentPart] = []
        self._newest: tuple[object, object, bytes] | None = None  # what it says; how the place shows it; its hash
        self._checked_ms = 0
        self._ran_ms = 0  # the last pass
        self._began_ms = 0  # when this process sent its first envelope
        self._rival = Rival(channel, peers, key)
        self._seen: dict[str, Signature] = {}  # of files, at their last pass
        self._dirty: set[str] = set()
        self._waits: dict[str, str] = {}
        self._unsent: dict[str, str] = {}  # by file: why its changes cannot be sent; empty: they can
        self._waiting: dict[str, int] = {}  # files that have no document: since when
        self._look_ms = 0  # when they are looked at again; 0: there are none
        self.sent_bytes = 0
        # By instance: why its newest envelope was not taken, and since when.
        self.refused: dict[str, tuple[HoldfastError, int]] = {}

    # --- whether there is anything to do ------------------------------------------------------

    def is_due(self, *, now_ms: int) -> bool:
        """Looks at files and places; opens nothing. Raises as `run` does."""
        try:
            return self._is_due(now_ms)
        except (OSError, HoldfastError) as error:
            self._note_failure(error, now_ms)
            raise

    def _is_due(self, now_ms: int) -> bool:
        marks = self._channel.marks(self._peers.others)
        return (
            self._newest is None
            or bool(self._dirty)
            or self._rival.is_over(now_ms)
            or 0 < self._look_ms <= now_ms
            or any(marks.get(name) != one.mark or 0 < one.again_ms <= now_ms for name, one in self._heard.items())
            or any(self._signature(name) != self._seen.get(name) for name in self._names())
            or not self._is_sent_whole(now_ms)
        )

    def _is_sent_whole(self, now_ms: int) -> bool:
        """Whether all that was sent is still in the place. While an instance is behind, it is read back now and then:
        a damaged file may be as long as the whole one was."""
        if self._newest is None:
            return False
        _, mark, digest = self._newest
        own, sent = self._channel.own(), [(one.part.name, one.mark, one.part.digest) for one in self._sent]
        sent.append((NEWEST, mark, digest))
        if any(own.get(name) != mark for name, mark, _ in sent):
            return False
        if now_ms - self._checked_ms < CHECK_MS or not any(one.behind_ms for one in self.state.peers.values()):
            return True
        self._checked_ms = now_ms
        if any(digest_of(self._channel.read(self._peers.me, name) or b"") != digest for name, _, digest in sent):
            self._newest = None
        return self._newest is not None

    def rest(self, *, now_ms: int) -> bool:
        """Close the documents, where the last pass was some time ago; whether there were any. When nothing is due."""
        if not self._ran_ms or now_ms - self._ran_ms < REST_MS:
            return False
        self._ran_ms = 0
        for one in self._files.values():
            one.close()
        return bool(self._files)

    # --- one pass -----------------------------------------------------------------------------

    def run(self, *, now_ms: int) -> list[Written]:
        """One pass; what it did to the files. Raises OSError or HoldfastError where the place or this folder cannot be
        used; what one file or one instance waits for is in `state` instead."""
        self._ran_ms = now_ms
        if not self.state.since:
            self.state = msgspec.structs.replace(self.state, since=day_of(now_ms))
        try:
            if not self._began_ms:
                self.state = begun(self.state, self._channel, self._peers.me)
            troubles = self._receive(now_ms)
            told = self._merge(now_ms)
            mark = None if self._newest is None else self._newest[1]
            self._rival.look(mark, life=self.state.life, since_ms=self._began_ms, now_ms=now_ms)
            if not self._rival.is_sending(now_ms):
                self._send(now_ms)
        except (OSError, HoldfastError) as error:
            self._note_failure(error, now_ms)
            raise
        self.refused.pop(self._peers.me, None)
        two = two_folders(self._peers.me) if self._rival.seen_ms else None
        if two is not None:
            self.refused[self._peers.me] = two, self._rival.since_ms
        self._note(troubles, now_ms, two)
        return told

    def announce(self, *, now_ms: int) -> None:
        """Send the roster, and nothing of any file."""
        self.state = begun(self.state, self._channel, self._peers.me)
        self._send(now_ms)

    # --- what arrived -------------------------------------------------------------------------

    def _receive(self, now_ms: int) -> dict[str, str]:
        """By instance: what is wrong with what it sent, or missing."""
        troubles: dict[str, str] = {}
        marks = self._channel.marks(self._peers.others)
        for name, heard in self._heard.items():
            known = self.state.peers[name].waits
            if marks.get(name) is None:
                heard.mark = None
                troubles[name] = f"nothing has arrived from {name} yet"
            elif marks[name] == heard.mark and not 0 < heard.again_ms <= now_ms:
                troubles[name] = known
            else:
                try:
                    troubles[name] = self._read(name, heard, now_ms)
                    self.refused.pop(name, None)
                except HoldfastError as error:
                    troubles[name] = error.message
                    self.refused[name] = error, self.refused.get(name, (error, now_ms))[1]
                heard.tries = heard.tries + 1 if marks[name] == heard.mark and troubles[name] else 0
                wait_ms = min(AGAIN_MS << min(heard.tries, 10), AGAIN_MS_MAX)
                heard.mark, heard.again_ms = marks[name], now_ms + wait_ms if troubles[name] else 0
        return {name: why for name, why in troubles.items() if why}

    def _read(self, name: str, heard: Heard, now_ms: int) -> str:
        raw = self._channel.read(name, NEWEST)
        if raw is None:
            return f"nothing has arrived from {name} yet"
        parcel = open_parcel(raw, self._peers, self._key, sender=name)
        if parcel.roster != self._roster:
            self._hear_roster(parcel.roster)
        if self.state.peers[name].is_old(parcel.at_ms, parcel.life):
            self._know(name, self.state.peers[name].ignoring(parcel.at_ms))
            return f"the newest that has arrived from {name} is older than what it sent before"
        if parcel.life != self.state.peers[name].life:  # what it has now may be less than it had
            heard.parts = {}
            self._forget(name)
        heard.parts = {one.digest: heard.parts[one.digest] for one in parcel.parts if one.digest in heard.parts}
        heard.missing = 0
        heard.asks = frozenset(one.file for one in parcel.updates if one.data or one.wants_whole)
        troubles = [self._take_part(name, one, heard, now_ms) for one in parcel.parts]
        # Changes that build on a part which is missing wait for it; what the instance confirms does not.
        updates = parcel.updates if not heard.missing else [without_data(one) for one in parcel.updates]
        troubles.append(self._take(updates, now_ms))
        self._know(name, self.state.peers[name].heard(parcel.at_ms, parcel.life, now_ms))
        if self.state.peers[name].is_two(now_ms):
            raise two_folders(name)
        missing = f"{heard.missing} of {len(parcel.parts)} parts of what {name} sent have not arrived yet"
        return missing if heard.missing else next(filter(None, troubles), "")

    def _know(self, name: str, peer: PeerState) -> None:
        self.state = msgspec.structs.replace(self.state, peers={**self.state.peers, name: peer})

    def _take_part(self, name: str, part: Part, heard: Heard, now_ms: int) -> str:
        if part.digest in heard.parts:
            return ""
        raw = self._channel.read(name, part.name)
        if raw is None or digest_of(raw) != part.digest:
            heard.missing += 1
            return ""
        parcel = open_parcel(raw, self._peers, self._key, sender=name)
        trouble, files = self._take(parcel.updates, now_ms), frozenset(one.file for one in parcel.updates)
        if trouble:
            heard.asks |= files
        else:
            heard.parts[part.digest] = files
        return trouble

    def _take(self, updates: Iterable[Update], now_ms: int) -> str:
        trouble = ""
        for one in updates:
            shared = self._file(one.file)
            before = shared.document.document
            if one.data and before is not None and before.knows(one.version):
                one = without_data(one)  # noqa: PLW2901 - there is nothing new in it
            try:
                check_foreign(one.data)  # may take minutes: before the lock that every writer of memory waits for
                with locked(self._place):
                    if shared.receive(one, now_ms=now_ms) or shared.document.document is None:
                        self._dirty.add(one.file)
            except BadUpdate as error:
                trouble = f"{one.file} of {one.instance}: {error.message}"
                continue
            after = shared.document.document
            if before is None and after is not None:
                self._read_again(one.file)
            if one.data and (after is None or not after.knows(one.version)):
                trouble = f"changes of {one.instance} to {one.file} build on others that have not arrived yet"
        return trouble

    def _read_again(self, file: str) -> None:
        """What others sent about the file could not be taken before."""
        for heard in self._heard.values():
            if file in heard.needs:
                heard.parts = {digest: files for digest, files in heard.parts.items() if file not in files}
                heard.mark = None

    def _forget(self, name: str) -> None:
        for file in documents(self._place):
            with locked(self._place):
                forget(self._file(file), name)

    # --- the files ----------------------------------------------------------------------------

    def _merge(self, now_ms: int) -> list[Written]:
        told: list[Written] = []
        if 0 < self._look_ms <= now_ms:
            self._dirty |= self._waiting.keys()
        for name in self._names():
            before = self._signature(name)
            if name not in self._dirty and before == self._seen.get(name, self.state.settled.get(name, ())):
                self._seen[name] = before
                continue
            try:
                with locked(self._place):
                    done = self._merge_one(name, now_ms)
            except (HoldfastError, OSError) as error:
                self._waits[name] = str(error)
                continue
            self._dirty.discard(name)
            self._seen[name] = before
            if done is not None:
                told.append(done)
                self._waits.pop(name, None)
                if done.left:
                    self._dirty.add(name)
        self._look_ms = now_ms + min(self._channel.late_ms, LOOK_AGAIN_MS) if self._waiting else 0
        return told

    def _merge_one(self, name: str, now_ms: int) -> Written | None:
        shared = self._file(name)
        if shared.document.document is None:
            day = name.removesuffix(".md")
            if is_day(day) and day > self.state.since and name not in self.state.documents:
                shared.found_day()
                self._read_again(name)
            elif shared.document.may_found(self._asked(name, now_ms)):
                shared.found()
                self._read_again(name)
            else:
                silent = [one for one in self._peers.others if one not in shared.document.known]
                self._waits[name] = f"waits for a document of {' or '.join(silent or self._peers.others)}"
                return None
        self._waiting.pop(name, None)
        done = shared.merge(now_ms=now_ms)
        peers = self.state.peers
        shared.compact([one for one in self._peers.others if not 0 < peers[one].kept_until_ms <= now_ms])
        return done

    def _asked(self, name: str, now_ms: int) -> list[str]:
        """The instances whose word counts for whether the file has a document yet, and who makes the first one.

        One that has never sent anything has none. One that has, and is silent about this file, may have one that was
        lost here; else, where another one has none either, it is asked for an hour. Of those that have none the first
        makes the document; if it does not, the next one does."""
        others, known = self._peers.others, self._file(name).document.known
        waited_ms = now_ms - self._waiting.setdefault(name, now_ms)
        left: set[str] = set()
        if waited_ms >= self._channel.late_ms:
            left |= {one for one in others if self._heard[one].mark is None and not self.state.peers[one].heard_ms}
        none = sorted(one for one in others if known.get(one) == NOTHING)
        if none and waited_ms >= SILENT_MS and name not in self.state.documents:
            left |= {one for one in others if one not in known}
        left |= set([one for one in none if one < self._peers.me][: waited_ms // TURN_MS])
        return [self._peers.me, *(one for one in others if one not in left)]

    def _names(self) -> list[str]:
        """The files that are shared: those that are there, those that others have told of, and MEMORY.md: a folder that
        was put back from before there was one asks for it, because the others believe that it has it."""
        found = {name for name in (MEMORY_FILE, HEARTBEAT_FILE) if os.path.lexists(self._path(name))} | {MEMORY_FILE}
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            found |= {name for name in os.listdir(self._place.days) if name.endswith(".md") and is_day(name[:-3])}
        return sorted(found | self._files.keys())

    def _file(self, name: str) -> SharedFile:
        if name not in self._files:
            self._files[name] = SharedFile(self._place, self._path(name), instance=self._peers.me, tasks=self.tasks)
        return self._files[name]

    def _path(self, name: str) -> Path:
        return self._place.folder / name if name in (MEMORY_FILE, HEARTBEAT_FILE) else self._place.days / name

    def _signature(self, name: str) -> Signature:
        path = self._path(name)
        return signature_of(path, self._place.document(path))

    # --- what others lack ---------------------------------------------------------------------

    def _send(self, now_ms: int) -> None:
        lacking = {name: one for name, one in self._files.items() if self._is_to_be_told(name)}
        self._unsent = {name: why for name, why in self._unsent.items() if name in lacking}
        self._sent = [one for one in self._sent if not self._is_confirmed(one)]
        if len(self._sent) > PARTS_MAX or self._begins_late() or not self._is_sent_whole(now_ms):
            self._sent, self._newest = [], None
        if self._newest is not None and self._newest[0] == self._said(lacking):
            return
        updates = [piece for name, one in lacking.items() for piece in self._updates(name, one)]
        if sum(len(one.data) for one in updates) > NEWEST_DATA_BYTES:
            self._put_parts([one for one in updates if one.data], now_ms)
            updates = [one for one in updates if not one.data]
        parts = tuple(one.part for one in self._sent)
        parcel = Parcel(now_ms, tuple(updates), parts, self._roster, self.state.life)
        raw = seal_parcel(parcel, self._peers, self._key)
        self.state = sending(self.state, raw)
        save_state(self._place.instance, self.state)
        self._began_ms = self._began_ms or now_ms
        self._newest = self._said(lacking), self._put(NEWEST, raw), digest_of(raw)
        self.state = after_sending(self.state, raw)
        for name in self._channel.own().keys() - {one.part.name for one in self._sent} - {NEWEST}:
            self._channel.remove(name)

    def _said(self, lacking: Mapping[str, SharedFile]) -> object:
        """What an envelope of now would say, without making it."""
        files = [
            (name, one.document.version, self._since(name, one), self._is_whole(name, one), one.document.wants_whole)
            for name, one in lacking.items()
            if not self._is_in_part(name, one)
        ]
        return files, [one.part.digest for one in self._sent], self._roster

    def _updates(self, name: str, one: SharedFile) -> list[Update]:
        if self._is_in_part(name, one):
            return []
        updates, self._unsent[name] = in_pieces(one.document, self._since(name, one), whole=self._is_whole(name, one))
        return updates

    def _since(self, name: str, one: SharedFile) -> Version:
        parts = [sent.upto[name] for sent in self._sent if name in sent.upto]
        return parts[-1] if parts else one.document.floor(self._peers.others)

    def _is_whole(self, name: str, one: SharedFile) -> bool:
        return one.document.is_asked(self._peers.others) and not any(name in sent.whole for sent in self._sent)

    def _is_in_part(self, name: str, one: SharedFile) -> bool:
        """Whether a part says all that is to be said about this file."""
        newest = next((sent for sent in reversed(self._sent) if name in sent.upto), None)
        return (
            newest is not None
            and newest.upto[name] == one.document.version
            and (name in newest.asking) == one.document.wants_whole
            and not self._is_whole(name, one)
        )

    def _is_confirmed(self, sent: SentPart) -> bool:
        return all(
            covers(self._file(name).document.floor(self._peers.others), upto) for name, upto in sent.upto.items()
        )

    def _begins_late(self) -> bool:
        """Whether an instance lacks what came before a part: it was restored, or its document is lost."""
        whole = frozenset[str]().union(*(one.whole for one in self._sent))
        first = {name: since for sent in reversed(self._sent) for name, since in sent.since.items()}
        others = self._peers.others
        return any(
            name not in whole and not covers(self._file(name).document.floor(others), since)
            for name, since in first.items()
        )

    def _put_parts(self, updates: Sequence[Update], now_ms: int) -> None:
        for some in chunks(updates):
            raw = seal_parcel(Parcel(at_ms=now_ms, updates=tuple(some)), self._peers, self._key)
            part = Part(digest_of(raw), len(raw))
            since = {one.file: self._since(one.file, self._files[one.file]) for one in some}
            self._sent.append(
                SentPart(
                    part=part,
                    mark=self._put(part.name, raw),
                    since=since,
                    upto={one.file: one.version for one in some},
                    asking=frozenset(one.file for one in some if one.wants_whole),
                    whole=frozenset(one.file for one in some if one.whole),
                )
            )

    def _put(self, name: str, raw: bytes) -> object:
        self.sent_bytes += len(raw)
        return self._channel.put(name, raw)

    # --- what is known ------------------------------------------------------------------------

    def _note_failure(self, error: OSError | HoldfastError, now_ms: int) -> None:
        with contextlib.suppress(OSError):  # the first error says more
            self._note({name: one.waits for name, one in self.state.peers.items()}, now_ms, error)

    def _note(self, troubles: Mapping[str, str], now_ms: int, trouble: OSError | HoldfastError | None) -> None:
        """Keep the state, where it has changed; close the documents that all have."""
        before = load_state(self._place.instance)
        peers: dict[str, PeerState] = {}
        for name, known in self.state.peers.items():
            files = sum(one.document.document is not None and one.document.lacks(name) for one in self._files.values())
            behind_ms = (known.behind_ms or now_ms) if files else 0
            why = troubles.get(name, "")
            fix = self.refused[name][0].hint if why and name in self.refused else ""
            peers[name] = msgspec.structs.replace(known, behind_ms=behind_ms, files=files, waits=why, fix=fix)
        settled, documents = dict(self.state.settled), set(self.state.documents)
        documents |= {name for name, one in self._files.items() if one.document.document is not None}
        open_ = {MEMORY_FILE, HEARTBEAT_FILE, *(f"{day_of(now_ms, back=back)}.md" for back in (0, 1))}
        for name in list(self._files):
            seen = self._seen.get(name)
            if not seen or name in self._dirty or self._is_wanted(name):
                settled.pop(name, None)
            else:
                settled[name] = seen
                if name not in open_:
                    del self._files[name]
        waits = {**{name: why for name, why in self._unsent.items() if why}, **self._waits}
        self.state = msgspec.structs.replace(
            self.state, peers=peers, files=waits, settled=settled, documents=frozenset(documents)
        ).troubled_by(trouble)
        if self.state != before:
            save_state(self._place.instance, self.state)

    def _is_wanted(self, name: str) -> bool:
        return self._is_to_be_told(name) or any(name in one.upto for one in self._sent)

    def _is_to_be_told(self, name: str) -> bool:
        """Whether this instance still has something to say or to ask about the file, or another one wants to hear."""
        document = self._files[name].document
        return document.wants_whole or any(
            document.lacks(one) or name in self._heard[one].needs for one in self._peers.others
        )
