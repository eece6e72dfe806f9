"""What is compared before a journal is used: its keys, and how far this host has seen it come."""

from __future__ import annotations

from pathlib import Path

from holdfast.core.ports import KeyRing
from holdfast.core.reading_ring import ReadingRing, refuse
from holdfast.errors import JournalDamaged, JournalOlderCopy, KeysWrong
from holdfast.journal.admin import HighWater
from holdfast.journal.postgres.links import Link
from holdfast.journal.seal import key_check
from holdfast.journal.sqlite.host.high_water import high_water
from holdfast.journal.sqlite.opening.open import JOURNAL_ID_CHARS


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


async def check_not_older(link: Link, folder: Path) -> tuple[int, int]:
    """Its incarnation, and the time of its newest record; JournalOlderCopy where this host's mark is above it."""
    mark = high_water(folder)  # first: another process may commit between the two, and raises it only afterwards
    row = await link.one(
        "SELECT number, (SELECT coalesce(max(last), 0) FROM $s.tally), (SELECT coalesce(max(at_ms), 0) FROM $s.tally) "
        "FROM $s.incarnation"
    )
    if row is None:
        raise JournalDamaged(f"{link.place.shown} has no incarnation")
    incarnation, newest, newest_ms = row
    if HighWater(incarnation, newest) < mark:
        raise JournalOlderCopy(
            f"{link.place.shown} ends at record {newest} of incarnation {incarnation}, but this machine has committed "
            f"record {mark.sequence} of incarnation {mark.incarnation}: the database is an older copy, or was promoted "
            "with loss"
        )
    return incarnation, newest_ms
