"""What is compared before a journal is used: its keys, and how far this host has seen it come."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from holdfast.core.ports import KeyRing
from holdfast.core.reading_ring import ReadingRing, refuse
from holdfast.errors import JournalDamaged, JournalOlderCopy, KeysWrong
from holdfast.journal.admin import HighWater
from holdfast.journal.postgres.links import Link
from holdfast.journal.postgres.place import Row
from holdfast.journal.postgres.verbs.seen import LANE, read_seen
from holdfast.journal.rules import SeenCommit, is_older_copy
from holdfast.journal.seal import key_check
from holdfast.journal.sqlite.host.high_water import high_water
from holdfast.journal.sqlite.host.journal_names import JOURNAL_ID_CHARS

OLDER_HINT = (
    "if the newer database still exists, use that one. If it is lost, stop the workers on every host and run `holdfast "
    "recover --journal URL`: Holdfast then looks up or parks each effect that may have happened since this copy was "
    "made, and never repeats one on a guess. See `holdfast explain restore-an-older-journal`"
)


LOADED = (
    "it was loaded from a dump: its tables are not those in which it was kept. No host can know what was done after "
    "the dump was made"
)


def new_meta(keys: KeyRing, journal_id: str) -> dict[str, str]:
    return {"journal_id": journal_id, "key_check": key_check(keys).hex()}


async def check_keys(link: Link, keys: KeyRing) -> str:
    """The journal's id, once the keys are known to be its own. Raises KeysWrong, JournalDamaged; RescuedCopy: a rescue
    key reads backups, which are files, and never the database itself."""
    if isinstance(keys, ReadingRing):
        refuse()
    meta = {str(key): str(value) for key, value in await link.run("SELECT key, value FROM $s.meta")}
    journal_id = meta.get("journal_id", "")
    if len(journal_id) != JOURNAL_ID_CHARS or any(char not in "0123456789abcdef" for char in journal_id):
        raise JournalDamaged(f"{link.place.shown}: its journal id is malformed")
    if meta.get("key_check") != key_check(keys).hex():
        raise KeysWrong("the keys do not belong to this journal")
    return journal_id


# A dump that is loaded makes other tables: the server numbers them. All else that is in the journal is in its dump too.
_NUMBERED = "concat_ws(' ', '$s.task'::regclass::oid, '$s.record'::regclass::oid)"
_LOADED = f"EXISTS (SELECT 1 FROM $s.meta WHERE key = 'tables' AND value <> {_NUMBERED})"
NOTE_TABLES = (
    f"INSERT INTO $s.meta AS m (key, value) VALUES ('tables', {_NUMBERED}) ON CONFLICT (key) DO UPDATE "
    "SET value = excluded.value WHERE m.value <> excluded.value"
)
POSITION = f"SELECT number, (SELECT coalesce(max(at_ms), 0) FROM $s.tally), {LANE}, {_LOADED} FROM $s.incarnation"


class Marks(NamedTuple):
    """How far this host has seen the journal come. Read before the journal: another process may commit between the two,
    and raises them only afterwards."""

    high_water: HighWater
    seen: SeenCommit | None

    @classmethod
    def of(cls, folder: Path) -> Marks:
        """Raises HighWaterDamaged."""
        return cls(high_water(folder), read_seen(folder))

    @property
    def lane(self) -> str:
        return "" if self.seen is None else self.seen.lane

    def find_older(self, row: Row) -> str:
        """Why the journal, whose POSITION this is, is an older copy; empty where it is not."""
        incarnation, _, stamp, folded_ms, newest, loaded = row
        mark, seen = self.high_water, self.seen
        if HighWater(incarnation, newest) < mark:
            return (
                f"it ends at record {newest} of incarnation {incarnation}, but this machine has committed record "
                f"{mark.sequence} of incarnation {mark.incarnation}: the database is an older copy, or was promoted "
                "with loss"
            )
        if seen is not None and is_older_copy(
            seen, incarnation=incarnation, newest=newest, stamp=stamp, folded_ms=folded_ms
        ):
            return (
                f"it does not have the commit with record {seen.number} of incarnation {seen.incarnation}, which this "
                "machine has seen: an older copy of the database was put back, and has been used since"
            )
        return LOADED if loaded else ""


async def note_tables(link: Link) -> None:
    """Before anything else is decided about a journal that is opened: in which tables it is. Raises JournalOlderCopy
    where it was in others: where it came from may still be at work, so a person must decide."""
    row = await link.one(f"SELECT {_LOADED}, EXISTS (SELECT 1 FROM $s.meta WHERE key = 'tables')")
    loaded, noted = row or (False, False)
    if loaded:
        raise JournalOlderCopy(f"{link.place.shown}: {LOADED}", hint=OLDER_HINT)
    if not noted:  # an older Holdfast has made it
        await link.run(NOTE_TABLES)


async def check_not_older(link: Link, folder: Path) -> tuple[int, int]:
    """Its incarnation, and the time of its newest record. Raises JournalOlderCopy, HighWaterDamaged."""
    marks = Marks.of(folder)
    row = await link.one(POSITION, (marks.lane,))
    if row is None:
        raise JournalDamaged(f"{link.place.shown} has no incarnation")
    if older := marks.find_older(row):
        raise JournalOlderCopy(f"{link.place.shown}: {older}", hint=OLDER_HINT)
    return row[0], row[1]
