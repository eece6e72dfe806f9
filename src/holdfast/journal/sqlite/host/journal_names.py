"""Which journals this machine has used: each has a folder, and in it the name of its file, or its url.

Apart from the code that opens a file: a shared journal needs the names too, and not that.
"""

from __future__ import annotations

from pathlib import Path

from holdfast.host.private_files import remove_durably, write_atomically
from holdfast.journal.sqlite.host.use_lock import JournalUse

JOURNAL_ID_CHARS = 16
NAME = "journal-name"


def remember_name(folder: Path, known_as: str) -> None:
    """Keep which file or url this instance folder belongs to, so that its loss is noticed."""
    name, wanted = folder / NAME, known_as.encode() + b"\n"
    if not name.exists() or name.read_bytes() != wanted:
        write_atomically(name, wanted)


def journal_names(instance_folder: Path) -> dict[Path, bytes]:
    """The folder and the file's name of every journal that this machine has used here."""
    return {one.parent: one.read_bytes().strip() for one in sorted(instance_folder.glob(f"*/{NAME}"))}


def forget_name(folder: Path) -> None:
    """A person says that this journal is gone for good; its mark stays."""
    remove_durably(folder / NAME)


async def use_all_alone(instance: Path, *, wait_s: float) -> list[JournalUse]:
    """Hold alone every journal that was opened with this instance folder. Raises JournalBusy."""
    held: list[JournalUse] = []
    try:
        for name in sorted(instance.glob(f"*/{NAME}")):
            held.append(await JournalUse.exclusive(name.parent, timeout_s=wait_s))
    except BaseException:  # also a cancel: no lock is kept
        for one in held:
            one.close()
        raise
    return held
