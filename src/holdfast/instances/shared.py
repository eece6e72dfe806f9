"""One memory file of several instances: the document behind it, and what the instances send each other about it.

The file stays the truth for people. Each pass over it (`memory/projection.py`) asks `begin` what the document says,
merges that with the file at the version that its last write left, writes the file, and gives the lines back to
`finish`. So an edit is compared with the text that was there when it was made, never with what has arrived since.

Any `Update` may be lost, come twice, late or in any order: it says which version its sender knows, so every sender
knows what each other instance still lacks, and sends that again until it is known. Compaction drops only history that
every enrolled instance knows.

An instance may still lack dropped history: it was restored from an old backup. Then neither side can take the other's
changes. The one that lacks the history (if both do, the one that knows less) takes the whole document of the other
instead, and merges its own lines into it, at the last version that both knew (`_rejoin`). Where there is none, every
line of both sides stays; what was removed on the other side meanwhile comes back then, and the next pass reports it.

An instance whose document is lost makes none from its file, because other instances may have removed lines of it: it
asks for a whole document, and keeps its own lines beside those with the same words (`LineDocument.keep_beside`). Only
if every enrolled instance says that it has none, the first of them makes one (`found`).

The order on disk: an update is taken and the document stored before others learn the version; the file; its
sidecar; then the document with the version that the file shows. A crash between any two of them leaves a sidecar that
is newer than the document says, which `begin` makes up for, or a document with changes that the file does not show yet.
The sidecar of a pass names the stored version that it merged with: what differs from that is the file's own change.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from holdfast.core.decoding import convert
from holdfast.errors import BadUpdate, HistoryMissing
from holdfast.instances.elements import Author, Brought, SharedLine, withdrawal
from holdfast.instances.line_document import NOTHING, LineDocument, Version, common, rank_of, same, which_has
from holdfast.memory import lines
from holdfast.memory.shared_lines import NEVER, MergedAt, Start, merged_at, unequal, whole_line, without_removed

FORMAT = 1


class Update(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What one instance tells others about one file. `version`: what its stored document knows."""

    instance: str
    file: str
    version: bytes
    data: bytes = b""
    whole: bool = False  # data is the whole document, not changes
    wants_whole: bool = False  # the sender cannot take changes


class _Header(msgspec.Struct, frozen=True, kw_only=True):
    format: int
    write: int
    shown: str  # the version that the file shows, in hex; empty: not known
    lines: str  # the hash of the lines that the file shows
    base: list[str] | None  # these lines, where the document does not have that version
    known: dict[str, str]  # by instance: the version that it told last
    digest: str  # of the document that follows
    unsure: list[str] = []  # lines that stay though one side may have removed them, to be reported by the next pass
    life: str = ""  # of the sidecar whose write that is
    since: str = ""  # where no version shows these lines: the version of the document then, in hex
    foreign: list[Brought] = []  # what that version has of lines with words of the file, and the file never showed


@dataclass(slots=True, kw_only=True)
class _Shown:
    """What the file showed after the last pass: the number of its sidecar, and a version or lines."""

    write: int = 0
    life: str = ""
    version: Version | None = None
    digest: str = ""  # of its lines: to compare them without going back to that version
    base: list[str] | None = None
    since: Version | None = None  # where no version shows these lines: what the document was then
    foreign: frozenset[Brought] = frozenset()  # elements of that, with words of the file, which the file never showed


class SharedDocument:
    """See the head of the module."""

    def __init__(self, *, instance: str, file: str, document: LineDocument | None = None) -> None:
        self.instance = instance
        self.file = file
        self.document = document
        self.known: dict[str, Version] = {}
        self._untaken: set[str] = set()  # whose changes build on history that is no longer kept here
        self._asked: set[str] = set()  # who wants the whole document
        self._shown = _Shown()
        self._stored = NOTHING  # the version that was loaded or stored last
        self._arrived: set[str] = set()  # lines of the document that the file has not shown yet
        self._is_founder = False  # the document was made from the file, just now
        self.unsure: list[str] = []  # lines that stayed though one side may have removed them, not reported yet

    @classmethod
    def load(cls, data: bytes, *, instance: str, file: str) -> SharedDocument:
        """From what `stored` gave. Raises BadUpdate."""
        head, _, rest = data.partition(b"\n")
        try:
            # A file that is not UTF-8 has lone surrogates in its text: msgspec refuses them.
            header = convert(json.loads(head), _Header)
            known = {name: bytes.fromhex(version) for name, version in header.known.items()}
            version = bytes.fromhex(header.shown) if header.shown else None
            since = bytes.fromhex(header.since) if header.since else None
        except (msgspec.MsgspecError, ValueError) as error:
            raise BadUpdate(f"the stored document of {file} cannot be read: {error}") from error
        if header.format != FORMAT or hashlib.sha256(rest).hexdigest() != header.digest:
            raise BadUpdate(f"the stored document of {file} is damaged, or was written by a newer version")
        found = cls(instance=instance, file=file, document=LineDocument(rest))
        found.known, found._stored = known, found.version
        found._shown = _Shown(
            write=header.write,
            life=header.life,
            version=version,
            digest=header.lines,
            base=header.base,
            since=since,
            foreign=frozenset(header.foreign),
        )
        found.unsure = header.unsure
        return found

    def go_on_from(self, closed: SharedDocument) -> None:
        """This is the stored document of one that was open: what others told it since is known here too."""
        self.known, self._untaken, self._asked = closed.known, closed._untaken, closed._asked

    def stored(self) -> bytes:
        rest, self._stored = self._document.copy(), self.version
        header = _Header(
            format=FORMAT,
            write=self._shown.write,
            shown=(self._shown.version or b"").hex(),
            lines=self._shown.digest,
            base=self._shown.base,
            known={name: version.hex() for name, version in self.known.items()},
            digest=hashlib.sha256(rest).hexdigest(),
            unsure=self.unsure,
            life=self._shown.life,
            since=(self._shown.since or b"").hex(),
            foreign=sorted(self._shown.foreign),
        )
        return json.dumps(msgspec.structs.asdict(header)).encode() + b"\n" + rest

    # --- the file -----------------------------------------------------------------------------

    def may_found(self, enrolled: Collection[str]) -> bool:
        """Whether this instance makes the first document: none has one, and it is the first of them."""
        others = set(enrolled) - {self.instance}
        none = all(self.known.get(one) == NOTHING for one in others)
        return self.document is None and none and self.instance <= min(others, default=self.instance)

    def found(self, lines_: Sequence[str], *, shown: bool = False) -> None:
        """`shown`: the file began with these lines, and what else it has was written without the document."""
        self.document, self._is_founder = LineDocument.from_lines(lines_), True
        if shown:
            self._shown = _Shown(version=self.document.version(), digest=_digest(lines_))

    def begin(
        self,
        base: Sequence[str] | None,
        write: int,
        gone: Mapping[str, int],
        author: Author,
        *,
        file: Sequence[str],
        life: str = "",
        merged: MergedAt = NEVER,
    ) -> Start:
        """What the document says. `base`: the lines that the file's sidecar has, None where it is lost; `write`: its
        number; `gone`: lines (their marks) that were removed from the file, and by which write; `file`: its lines now;
        `life`: of the sidecar: numbers of another one say nothing; `merged`: its last write that merged.
        The `base` of the result is None where it is not known what the file showed last."""
        document, stored = self._document, self._document.lines()
        last = list(base) if base is not None and _digest(base) == self._shown.digest else self._last()
        is_other = bool(self._shown.write) and life != self._shown.life
        self._arrived = set(stored).difference(file if last is None else last)
        seen, since = self._merged_with(last, merged)
        if marks := {one for one, when in gone.items() if is_other or when > self._shown.write}:
            known = None if is_other else seen
            self._forget(marks.difference(map(lines.removal_mark, base or ())), known, author)
        if base is None or last is None or seen is None or is_other or write < self._shown.write:
            # What the document knows the file showed, and the new sidecar's writes brought: it was removed before.
            again = {line for line in last or () if lines.entry_hash(line) and lines.key_of(line) in author.ours}
            return self._blind(last, base, file, author, doubted=again if is_other else ())
        if list(base) != seen and write == self._shown.write:  # an older sidecar was put back
            return self._blind(last, base, file, author)
        # What was written and removed again before the document knew it: the same words in there are another line.
        base = _without(base, _added(seen, base, author).difference(file))
        kept = frozenset[str]()
        if base != seen or seen is not last:
            # The file was written meanwhile without the document, or by a pass that was killed before it told it.
            own = _added(last, base, author).intersection(seen, file)  # stays where others remove theirs
            self._tell_apart((), last, own.union(last), author, self._shown.version)
            kept = self._tell_apart(seen, seen, base, author, since)
            # The killed pass removed what the file showed, and brought lines with the same words: those stay.
            had, came, now = Counter(last), Counter(seen) - Counter(last), Counter(base)
            stay = {line: min(had[line], now[line] - came[line]) for line in merged[2] if 0 < came[line] <= now[line]}
            after = [*_without(last, stay), *Counter(stay).elements()]
            stored = [line for line in stored if not came[line] or line in merged[2]]  # the file has shown what came
            others = self._tell_apart(last, last, after, author, self._shown.version)
            then = _without(without_removed(seen, base, kept), others | own)
            document.change_to(merged_at(then, base, document.lines()).lines, author, steady=self._arrived)
            kept |= others
        apart = self._tell_apart(seen, base, file, author, since)
        unsure, near = self._doubted(apart | kept), self._near(last, author)
        left, version = without_removed(base, file, apart), self._stored.hex()
        return Start(lines=document.lines(), base=left, near=near, unsure=unsure, version=version, stored=stored)

    def _merged_with(self, last: list[str] | None, merged: MergedAt) -> tuple[list[str] | None, Version | None]:
        """The lines that the file was merged with, and their version: those that it showed `last`, or what a pass found
        that was killed before the document noted it. No lines: the document does not have that version."""
        if merged[0] <= self._shown.write:
            return last, self._shown.version
        with contextlib.suppress(HistoryMissing, BadUpdate, ValueError):
            since = bytes.fromhex(merged[1])
            return self._document.lines_at(since), since
        return None, None

    def _doubted(self, removed: Collection[str] = ()) -> tuple[str, ...]:
        """What is to be reported: also lines that others or this file (`removed`) have removed since the last pass, and
        that are there because an instance had them in its file when its document or the sidecar was lost."""
        if now := self._document.only_beside():
            with contextlib.suppress(HistoryMissing):
                if self._shown.version is not None:
                    now -= self._document.only_beside(self._shown.version).difference(removed)
        return tuple(sorted({*self.unsure, *now}))

    def _blind(
        self,
        last: Sequence[str] | None,
        base: Sequence[str] | None,
        file: Sequence[str],
        author: Author,
        *,
        doubted: Collection[str] = (),
    ) -> Start:
        """What the file has since `last` or `base` is known, but not what was removed, nor whether a person added it or
        a pass that was killed brought it: it is kept beside lines with the same words, as one of no time. Where the
        document is another instance's, so is each line of a person. `doubted`: entries to be reported if they stay."""
        document = self._document
        before = last if last is not None else base
        if before is not None:
            self._tell_apart((), before, file, replace(author, at_ms=0), self._shown.version)
        if last is None and not self._is_founder:
            document.keep_beside([line for line in file if _is_own(line)], author, first=base or ())
        unsure = tuple(sorted({*self._doubted(), *set(doubted).intersection(file)}))
        return Start(lines=document.lines(), base=None, gone=document.gone(), unsure=unsure, version=self._stored.hex())

    def _tell_apart(
        self, last: Sequence[str], before: Sequence[str], after: Collection[str], author: Author, since: Version | None
    ) -> frozenset[str]:
        """See `LineDocument.tell_apart`. Entries are the same on every instance. A line that is not in `last`, what the
        document had at `since`, was written into the file: no element of it is another line. Where it is not known
        which version the file showed, a removal takes all, but for what the file cannot have shown."""
        had, now, most, document = Counter(before), Counter(after), Counter(last), self._document
        fewer = {line for line in had.keys() & most.keys() if not now[line] or now[line] < had[line] <= most[line]}
        removed = {line: now[line] for line in fewer if _is_own(line)}
        more = now - had
        added = {line: had[line] for line in more if _is_own(line) and lines.key_of(line) not in author.ours}
        with contextlib.suppress(HistoryMissing):
            if since is not None:
                return document.tell_apart(added, removed, since, author)
            document.tell_apart(added, {}, NOTHING, author)
            if self._shown.since is not None:
                return document.tell_apart({}, removed, self._shown.since, author, foreign=self._shown.foreign)
        return frozenset()

    def _forget(self, removed: Collection[str], last: Sequence[str] | None, author: Author) -> None:
        """These lines (marks) were removed from the file by a write without the document. Only entries are remembered:
        another instance may write them from the journal later. Other lines only if a pass brought them and was killed
        before it noted that: what the file showed `last` is compared below, and where that is not known, a line with
        these words may be one that another instance has brought in since."""
        self._document.forget([one for one in removed if lines.is_entry_key(one)])
        if last is not None and not all(map(lines.is_entry_key, removed)):
            marks = set(removed).difference(map(lines.removal_mark, last))
            left = [line for line in self._document.lines() if lines.removal_mark(line) not in marks]
            self._document.change_to(left, author)

    def finish(self, shown: Sequence[str], write: int, author: Author, *, life: str = "") -> bool:
        """The file shows these lines now; whether there is anything new to store."""
        document, before = self._document, self._shown
        changed = document.change_to(shown, author, steady=self._arrived)
        differs = document.lines() != list(shown)
        version, since = (None, document.version()) if differs else (document.version(), None)
        base = list(shown) if differs else None
        self._shown = _Shown(write=write, life=life, version=version, digest=_digest(shown), base=base, since=since)
        told, self.unsure = bool(self.unsure), []
        stays = version is not None and before.version is not None and same(version, before.version)
        return changed or differs or not stays or (write, life) != (before.write, before.life) or told

    def _last(self) -> list[str] | None:
        if self._shown.base is not None:
            return self._shown.base
        if self._shown.version is None:
            return None
        try:
            return self._document.lines_at(self._shown.version)
        except HistoryMissing:
            return None

    def _near(self, last: Sequence[str], author: Author) -> tuple[tuple[str, str], ...]:
        """Lines of other instances that have arrived and say nearly the same as one of ours."""
        before = set(last)
        shown = self._document.shown()
        arrived = [one.text for one in shown if one.instance != author.instance and one.text not in before]
        recent = [
            one.text for one in shown if one.instance == author.instance and author.at_ms - one.at_ms < lines.RECENT_MS
        ]
        return lines.near(recent, arrived) if arrived else ()

    # --- other instances ----------------------------------------------------------------------

    def receive(self, update: Update, author: Author) -> bool:
        """Take in what another instance told; whether the document has changed. Store it before telling others.
        Raises BadUpdate: nothing has changed."""
        rank_of(update.version)  # refuses what is no version
        changed = bool(update.data) and (self._take_whole(update.data, author) if update.whole else self._take(update))
        if self.document is not None and self.document.knows(update.version):
            self._untaken.discard(update.instance)
        self.known[update.instance] = update.version
        (self._asked.add if update.wants_whole else self._asked.discard)(update.instance)
        return changed

    def floor(self, others: Collection[str]) -> Version:
        """What all of them know, as far as they told."""
        found = self.version
        for one in others:
            found = common(found, self.known.get(one, NOTHING))
        return found

    def lacks(self, other: str) -> bool:
        """Whether that instance has not told yet that it knows what this one does, or asks for the whole document."""
        return other in self._asked or not same(self.known.get(other, NOTHING), self.version)

    def is_asked(self, others: Collection[str]) -> bool:
        return self.document is not None and bool(self._asked & set(others))

    @property
    def is_asked_by_another_document(self) -> bool:
        """Whether one asks that has a document: it takes a whole one at once or not at all, and no pieces."""
        return any(not same(self.known.get(one, NOTHING), NOTHING) for one in self._asked)

    @property
    def wants_whole(self) -> bool:
        """Whether this instance cannot take the changes of another one, until it knows what that one does: the whole
        document of a third one, which lacks them too, is no answer."""
        return self.document is None or bool(self._untaken)

    @property
    def version(self) -> Version:
        return NOTHING if self.document is None else self.document.version()

    def update_since(self, since: Version, *, whole: bool) -> Update:
        document, data = self.document, b""
        if document is None:
            return Update(instance=self.instance, file=self.file, version=NOTHING, wants_whole=True)
        whole = whole or document.begins_after(since)
        if whole:
            data = document.whole()
        elif not same(common(since, document.version()), document.version()):
            data = document.changes_since(since)
        version = document.version()
        return Update(
            instance=self.instance,
            file=self.file,
            version=version,
            data=data,
            whole=whole,
            wants_whole=self.wants_whole,
        )

    def compact(self, enrolled: Collection[str]) -> bool:
        """Drop the history that every enrolled instance knows and that the file shows; none while one of them has what
        cannot be taken here: the history tells then which of its lines were removed. Whether it tried."""
        floor = self._shown.version
        if floor is None or self._untaken.intersection(enrolled):
            return False
        for one in set(enrolled) - {self.instance}:
            floor = common(floor, self.known.get(one, NOTHING))
        self.document = LineDocument(self._document.copy(keep_from=floor))
        return True

    def _take(self, update: Update) -> bool:
        if self.document is None:
            return False
        before = self.document.version()
        try:
            self.document.take(update.data)
        except HistoryMissing:
            self._untaken.add(update.instance)
        return not same(before, self.document.version())

    def _take_whole(self, data: bytes, author: Author) -> bool:
        other = LineDocument(data)
        mine = self.document
        if mine is None:
            self.document = other
            return True
        if mine.knows(other.version()):
            return False
        if not other.begins_after(mine.version()):
            with contextlib.suppress(HistoryMissing):
                mine.take(data)
            if mine.knows(other.version()):
                return True
        lacks, other_lacks = other.begins_after(mine.version()), mine.begins_after(other.version())
        is_less = rank_of(other.version()) < rank_of(mine.version())
        if other_lacks if lacks is not other_lacks else is_less:
            return False  # the other instance takes ours
        self._rejoin(mine, other, author)
        return True

    def _rejoin(self, mine: LineDocument, other: LineDocument, author: Author) -> None:
        last = self._last()
        since = common(mine.version(), other.version())
        other.forget(mine.withdrawn_since(since))  # a third document may have what was added and removed here
        # Each may have what was carried over into the other one, and removed there, also before that version.
        for has, removed_it in ((mine, other), (other, mine)):
            marks = {withdrawal(one.brought) for one in has.elements()}
            has.forget(marks & removed_it.withdrawn_since(NOTHING))
        own, theirs = mine.lines(), other.lines()
        both = {line for line in set(own).intersection(theirs) if _is_own(line)}
        words = {line for line in {*own, *(last or ())}.intersection(theirs) if _is_own(line)}
        foreign = other.brought_since(since, words).difference(one.brought for one in mine.elements())
        there = {one.brought for one in other.elements()}
        apart = {
            one.text for one in mine.elements() if one.brought not in there
        }  # not the same lines, with equal words
        if (knows := which_has(since, mine, other)) is None:
            self.unsure = sorted({*self.unsure, *unequal(own, theirs)})
            other.keep_beside([line for line in own if line in both], author, first=own)
            merged = lines.union(own, theirs, key=whole_line)
        else:
            # The same words that both have brought in since are two lines, and an entry that was removed stays away,
            # unless a person put it back here.
            before, gone_then = knows.lines_at(since), knows.gone_at(since)
            gone, also_gone = mine.gone() - gone_then, other.gone() - (gone_then - mine.gone())
            removed = {line for line in set(before).difference(own) if _is_own(line)}
            kept = other.tell_apart({}, dict.fromkeys(removed, 0), since, author, past=knows)
            had = Counter(before)
            more = (both & apart).intersection(Counter(own) - had)
            other.tell_apart({line: had[line] for line in more}, {}, NOTHING, author)
            left = [line for line in other.lines() if lines.entry_hash(line) not in gone or line in own]
            own = [line for line in own if lines.entry_hash(line) not in also_gone]
            # A line whose words were there then, but of which this side has only what was brought in since, is new.
            then = knows.brought_at(since)
            old = {one.text for one in mine.elements() if one.brought in then}
            merged = merged_at(_without(before, kept | set(own).difference(old)), own, left)
        other.change_to(merged.lines, author, known=mine, steady=set(theirs).difference(own))
        self.document = other
        shown = self._shown
        self._shown = _Shown(
            write=shown.write,
            life=shown.life,
            digest="" if last is None else shown.digest,
            base=last,
            since=other.version(),
            foreign=shown.foreign | foreign,
        )

    @property
    def _document(self) -> LineDocument:
        if self.document is None:
            raise HistoryMissing(f"this instance has no document of {self.file} yet")
        return self.document

    def lines(self) -> list[str]:
        return [one.text for one in self.shown()]

    def shown(self) -> list[SharedLine]:
        """The lines, with who brought them in."""
        return [] if self.document is None else self.document.shown()


def _is_own(line: str) -> bool:
    """Whether it is a person's, and can be known again by what it says."""
    return lines.is_telling(line) and not lines.entry_hash(line)


def _added(before: Collection[str], after: Collection[str], author: Author) -> set[str]:
    """What a person wrote since, as far as Holdfast did not bring it."""
    new = set(after).difference(before)
    return {line for line in new if _is_own(line) and lines.key_of(line) not in author.ours}


def _without(some: Sequence[str], left_out: Collection[str]) -> list[str]:
    return [line for line in some if line not in left_out]


def _digest(shown: Sequence[str]) -> str:
    return hashlib.sha256("\n".join(shown).encode(errors="surrogateescape")).hexdigest()
