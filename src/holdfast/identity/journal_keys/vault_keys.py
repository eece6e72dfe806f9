"""The keys of a journal move from keys.json into a vault, and are found there.

After the move keys.json holds no key any more, only where the vault is. The replacement of that
file is the one moment of the move: before it the old file counts and the vault already holds the
same keys, read back and compared; after it the vault counts. A kill at any instant leaves one of
the two, and the command can be run again. An older Holdfast refuses the new file as one of an
unknown format, rather than making new keys.

What the old file held is overwritten on the disk where nothing else refers to it. A disk that
copies on write, a snapshot or a backup may keep it: keys that were ever in the open on a disk you
do not trust are not made safe by the move.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import cast

from holdfast.errors import KeysWrong, VaultDamaged
from holdfast.host.private_files import TEMPORARY_SUFFIX, create_durably, destroying, write_atomically
from holdfast.identity.journal_keys.keyfile import POINTER, is_pointer, parse, read
from holdfast.identity.journal_keys.secret_file import lock_keys
from holdfast.identity.vault.ring import JournalKeys, VaultRing, read_escrow
from holdfast.identity.vault.vault import Vault, open_vault, terminal_prompt
from holdfast.layout.rescued import is_rescued


def read_keys(path: Path) -> JournalKeys:
    """The keys that keys.json holds, for a new vault. Raises KeysWrong where it holds none."""
    raw = read(path)
    if is_pointer(raw):
        raise KeysWrong(f"the keys of {path} are already in a vault", hint="nothing was changed")
    found = parse(raw, where=str(path))
    return JournalKeys(
        k_effect=found.k_effect,
        current=found.current_journal_key,
        journal_keys=found.journal_keys,
        journals=found.journals,
    )


def move_keys(path: Path, vault: Vault) -> None:
    """From now on the vault has the keys of the journal beside this keys.json. Safe to repeat. Raises VaultDamaged
    where the vault does not hold them all; nothing was changed then."""
    with lock_keys(path):
        raw = read(path)
        if is_pointer(raw):
            if _pointer(raw, path)[1] != vault.vault_id:
                raise KeysWrong(f"the keys of {path} are already in another vault")
            return
        if not _covers(read_escrow(vault).keys, read_keys(path)):
            raise VaultDamaged(
                f"the vault in {vault.folder} does not have the keys of {path}",
                hint="create the vault with these keys; nothing was moved",
            )
        with destroying(path):
            write_atomically(path, _pointing_to(vault))


def point_keys(path: Path, vault: Vault) -> None:
    """From now on this keys.json leads to the vault: a new one, one whose vault was lost, or a rescued copy's. One that
    holds keys itself is moved. Safe to repeat."""
    if not create_durably(path, _pointing_to(vault)):
        with lock_keys(path):
            raw = read(path)
            here = (vault.folder.absolute(), vault.vault_id)
            if is_rescued(raw) or (is_pointer(raw) and _pointer(raw, path) != here):
                write_atomically(path, _pointing_to(vault))
        if not (is_pointer(raw) or is_rescued(raw)):
            move_keys(path, vault)
    with lock_keys(path):  # no one writes it now: what is left beside it is of a run that was killed
        for one in path.parent.glob(f".{path.name}.*{TEMPORARY_SUFFIX}"):
            one.unlink(missing_ok=True)


def _pointing_to(vault: Vault) -> bytes:
    fields = {"format": POINTER, "vault": str(vault.folder.absolute()), "id": vault.vault_id}
    return json.dumps(fields, indent=1).encode() + b"\n"


def open_ring(raw: bytes, *, where: Path, ask: Callable[[], str] | None = None) -> VaultRing:
    """The ring in the vault that this keys.json names, opened by the machine's own slots; else by asking a person."""
    folder, vault_id = _pointer(raw, where)
    vault = open_vault(folder, ask=ask or terminal_prompt())
    if vault.vault_id != vault_id:
        raise KeysWrong(f"the vault in {folder} is not the one that {where} names: its id differs")
    return VaultRing(vault)


def _pointer(raw: bytes, where: Path) -> tuple[Path, str]:
    fields = cast("dict[str, object]", json.loads(raw))
    folder, vault_id = fields.get("vault"), fields.get("id")
    if not isinstance(folder, str) or not isinstance(vault_id, str) or len(fields) != 3:
        raise KeysWrong(f"{where} is malformed")
    if not os.path.isabs(folder):
        raise KeysWrong(f"{where} names a vault with a relative path; it must be absolute")
    return Path(folder), vault_id


def _covers(held: JournalKeys, wanted: JournalKeys) -> bool:
    same = held.k_effect == wanted.k_effect and held.current in held.journal_keys
    # A journal without a salt may be listed later: its ids are the same either way.
    same = same and all(one in held.journals for one in wanted.journals if one.salt)
    return same and wanted.journal_keys.items() <= held.journal_keys.items()
