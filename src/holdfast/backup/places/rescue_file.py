"""`rescue.age` as it goes beside the places, and `rescue.json`: which rescue keys there are, and what each still opens.

Sealing the same twice gives other bytes, and every place would be written again. So the file is kept in the instance
folder and made again only where something changed (identity/vault/rescue.py).

rescue.json is in the agent's folder, for `rescue list`, `doctor` and the register of surfaces, which open no vault. It
is written after the vault; a kill in between leaves it a change behind until the next backup.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast.backup.places.places import Place
from holdfast.core.decoding import decode_json
from holdfast.errors import BadPlace, HoldfastError
from holdfast.host.private_files import ensure_private_folder, read_private, write_atomically
from holdfast.identity.vault.rescue import RESCUE, RescueEntry, counting, entries_of, sealed_rescue
from holdfast.identity.vault.ring import Escrow
from holdfast.identity.vault.vault import Vault
from holdfast.layout.agent_home import AgentHome

FORMAT = 1
FILE_BYTES_MAX = 1 << 20


class _Register(msgspec.Struct, frozen=True, kw_only=True):
    format: int
    keys: tuple[RescueEntry, ...]


class Opened(msgspec.Struct, frozen=True, kw_only=True):
    """One repository that a rescue key opens."""

    place: str
    repository: str
    newer: bool  # also the snapshots that are still to come

    @property
    def text(self) -> str:
        whole = f"every snapshot at place {self.place}, new ones too"
        return whole if self.newer else f"the old repository {self.repository}"


def kept_rescue(home: AgentHome, vault: Vault, escrow: Escrow, places: Sequence[Place]) -> bytes | None:
    """The rescue.age for these places; None where there never was a rescue key."""
    folder = home.instance / "backup"
    try:
        kept = read_private(folder / RESCUE, FILE_BYTES_MAX)
    except FileNotFoundError:
        kept = None
    epochs = {place.name: place.epoch for place in places}
    made = sealed_rescue(escrow, epochs, vault.identity, kept=kept)
    if made is not None and made != kept:
        ensure_private_folder(folder)
        write_atomically(folder / RESCUE, made)
    if made is not None:
        _write_register(home, entries_of(escrow))
    return made


def read_register(home: AgentHome) -> tuple[RescueEntry, ...]:
    """Every rescue key that the vault knew at the last change or backup. Raises BadPlace."""
    try:
        return decode_json(read_private(home.rescue_file, FILE_BYTES_MAX), _Register).keys
    except FileNotFoundError:
        return ()
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise BadPlace(
            f"{home.rescue_file}: {error}", hint="remove this file: `holdfast backup now` writes it again"
        ) from None


def _write_register(home: AgentHome, entries: Sequence[RescueEntry]) -> None:
    fields = _Register(format=FORMAT, keys=tuple(entries))
    raw = msgspec.json.format(msgspec.json.encode(fields)) + b"\n"
    try:
        if read_private(home.rescue_file, FILE_BYTES_MAX) == raw:
            return
    except FileNotFoundError:
        pass
    write_atomically(home.rescue_file, raw)


def opened_by(entry: RescueEntry, places: Sequence[Place]) -> tuple[Opened, ...]:
    """What this key opens at the places that the agent has now."""
    found: list[Opened] = []
    for place in places:
        last = entry.epochs.get(place.name, 0)
        if not entry.revoked_ms or place.epoch <= last:
            found.append(Opened(place=place.name, repository=place.repository, newer=True))
        found += [
            Opened(place=place.name, repository=place.repository_of(one.suffix), newer=False)
            for one in place.older
            if one.epoch <= last
        ]
    return tuple(found)


def rescue_findings(home: AgentHome, places: Sequence[Place]) -> list[tuple[str, str, str]]:
    """For a person who looks for what is wrong: level (ok, note, warning), text, and the command that fixes it."""
    try:
        entries = read_register(home)
    except HoldfastError as error:
        return [("warning", error.message, error.hint)]
    found: list[tuple[str, str, str]] = []
    for one in entries:
        left = opened_by(one, places) if one.revoked_ms else ()
        if left:
            level = "warning" if any(opened.newer for opened in left) else "note"
            opens = "; ".join(opened.text for opened in left)
            found.append((level, f"{one.name} is revoked and still opens: {opens}", find_fix(one, places)))
    valid = ", ".join(one.name for one in counting(entries))
    return [*found, ("ok", f"{valid}: opens every place, for reading", "")] if valid else found


def find_fix(entry: RescueEntry, places: Sequence[Place]) -> str:
    """The command that closes to a revoked key what it still opens; empty where that is nothing."""
    left = opened_by(entry, places) if entry.revoked_ms else ()
    if not left:
        return ""
    return f"`holdfast rescue revoke {entry.name}{'' if any(one.newer for one in left) else ' --remove-old'}`"
