"""A journal and the key ring beside it: is it the ring's first journal, a further one, or one that was given up?

`core/served.py` says what the ring lists and why. Here it is decided, each time a journal is opened, before
anything can be submitted to it.
"""

from __future__ import annotations

import contextlib

from holdfast.core.clock import Entropy
from holdfast.core.journal_address import JournalAddress, file_at
from holdfast.core.served import (
    SALT_BYTES,
    Served,
    ServedJournal,
    ServingRing,
    find_heir,
    find_served,
    salt_of,
    with_journal,
)
from holdfast.errors import HoldfastError, JournalBusy, JournalGone, JournalOlderCopy, KeysWrong
from holdfast.journal.bind import journal_at

SQLITE_PAGE_MIN = 512  # bytes: a smaller file is no database


def check_may_begin(address: JournalAddress, keys: ServingRing) -> None:
    """Raises JournalGone where these keys serve a journal that is not in this folder. A new one would either send its
    effects again or, with a salt, not know that they happened: a person must say which journal is meant."""
    names = journal_at(address).used_here()
    for one in keys.journals:
        name = names.get(one.id, one.name)
        if not _is_here(address.named(name), one.id):
            raise JournalGone(
                f"the keys in {address.folder} also serve the journal {name} ({one.id}), and it is not in this folder; "
                f"Holdfast did not create {address.name}",
                hint=f"put {name} back, or, if no copy of it is left, run `holdfast recover --journal "
                f"{address.named(name)} --begin-anew`. If {address.name} is to be a further journal with tasks of its "
                "own, give `--new-journal`",
            )


def serve_journal(address: JournalAddress, journal_id: str, keys: ServingRing, entropy: Entropy) -> None:
    """Have the ring list this journal, and decide its salt if it is new. From then on the journal itself says its salt.
    Raises JournalOlderCopy where the ring gave the journal up; KeysWrong where it has another salt for it; and for a
    new journal that needs a salt what a ring that cannot be written does."""
    admin = journal_at(address)
    kept, known = admin.task_salt(), find_served(keys.journals, journal_id)
    if known is not None and known.salt == (kept or b""):
        return
    heir = find_heir(keys.journals, journal_id)
    if heir is not None:
        raise JournalOlderCopy(
            f"{address} was given up as lost, and the journal {heir.name} ({heir.id}) took its place",
            hint=f"if {address.name} is to be the journal again, take {heir.name} out of this folder and run `holdfast "
            f"recover --journal {address}`",
        )
    others = admin.used_here().keys() - {journal_id}
    if kept is None and not others:
        others = _journals_beside(address)

    def with_this(served: Served) -> Served:
        salt = kept or (entropy.bytes(SALT_BYTES) if kept is None and (served or others) else b"")
        return with_journal(served, ServedJournal(id=journal_id, name=address.name, salt=salt))

    try:
        keys.change_journals(with_this)
        salt = salt_of(keys.journals, journal_id)
    except (HoldfastError, OSError):
        if kept is None and (keys.journals or others):
            raise
        salt = kept or b""  # its ids are the same, listed or not; the next process that opens it tries again
    if kept is not None and kept != salt:
        raise KeysWrong(f"the keys have another salt for {address} than the journal itself")
    if kept is None and admin.keep_task_salt(salt) != salt:
        raise JournalBusy(f"another process opened {address} for the first time at the same moment")


def _journals_beside(address: JournalAddress) -> set[str]:
    """The ids of the other journals in this folder. One that was moved here or restored may not have been opened yet:
    neither the ring nor `instance` need know it.

    Looked at by SQLite alone, and never a -wal or -shm: whoever opens and closes one of its files in another way gives
    up every lock that this process has on it, and the next process then shortens the -shm under our feet."""
    found: set[str] = set()
    for one in address.folder.iterdir():
        if one.name != address.file and not one.name.endswith(("-wal", "-shm", "-journal")):
            with contextlib.suppress(HoldfastError, OSError):
                if one.is_file() and one.stat().st_size >= SQLITE_PAGE_MIN:
                    found.add(journal_at(file_at(one)).peek())
    return found


def _is_here(address: JournalAddress, journal_id: str) -> bool:
    admin = journal_at(address)
    try:
        return admin.exists() and admin.peek() == journal_id
    except HoldfastError:
        return True  # something is there, and says itself what is wrong with it when it is opened
