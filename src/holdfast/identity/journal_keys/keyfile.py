"""Keys before there is a vault: `keys.json` beside, never inside, the journal.

Once the keys were moved into a vault the file only says where that is (vault_keys.py).

Written before the journal is first made, so that there is never a journal without its keys.
0600, ours, no link; parsed strictly. It is written again when a journal comes to use it
(core/served.py), under the lock of all who write beside it. Losing this file loses every sealed payload, and with it
the effect keys: keep a copy apart from the journal.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from holdfast.core.clock import Entropy
from holdfast.core.served import PLAIN, Served, ServingRing, format_of, listed, parse_served
from holdfast.errors import KeysMissing, KeysWrong, NotNow, ReadOnly
from holdfast.host.private_files import check_place, check_private_file, create_durably, read_private, write_atomically
from holdfast.layout.rescued import format_of_keys, is_rescued

POINTER = 2
KEY_BYTES = 32
FILE_BYTES_MAX = 1 << 20


@dataclass(slots=True, kw_only=True, eq=False)
class KeyFile:
    """core.served.ServingRing from keys.json."""

    k_effect: bytes = field(repr=False)
    journal_keys: dict[int, bytes] = field(repr=False)
    current_journal_key: int
    journals: Served = ()
    path: Path | None = None  # None: in memory alone

    def journal_key(self, key_id: int) -> bytes:
        key = self.journal_keys.get(key_id)
        if key is None:
            raise KeysWrong(f"the key file has no journal key {key_id}")
        return key

    def change_journals(self, decide: Callable[[Served], Served]) -> None:
        from holdfast.identity.journal_keys.secret_file import lock_keys

        if self.path is None:
            raise NotNow("these keys were read from a copy: no journal can be added to them")
        with lock_keys(self.path):
            raw = read(self.path)
            if is_pointer(raw):
                raise NotNow(f"the keys of {self.path} were moved into a vault just now", hint="try again")
            found = parse(raw, where=str(self.path)).journals
            changed = decide(found)
            if changed != found:
                fields = json.loads(raw) | {"format": format_of(changed), "journals": listed(changed)}
                write_atomically(self.path, json.dumps(fields, indent=1).encode() + b"\n")
        self.journals = changed


def load_or_create(path: Path, *, journal_exists: bool, entropy: Entropy) -> ServingRing:
    """The ring at this path, in its vault or with its signer; a new one where nothing exists yet. Raises KeysMissing
    where the journal exists without its keys, and what opening a vault does."""
    check_place(path)
    signer = find_signer(path.parent)
    if signer is not None:
        from holdfast.identity.speaker.signer_client import SignerClient, SignerRing

        return SignerRing(SignerClient(signer))
    if not os.path.lexists(path):
        if journal_exists:
            if not any(path.parent.glob("*.db")):  # the journal is on a server
                raise KeysMissing(
                    f"there is no {path.name} in {path.parent}, and the journal has keys already",
                    hint=f"copy {path.name} from the folder of a host that uses this journal (mode 0600), or let the "
                    "agent's vault reach this host: see `holdfast explain postgres`",
                )
            raise KeysMissing(f"there is no {path.name} next to the journal in {path.parent}")
        try:
            _create(path, entropy)
        except OSError as error:
            raise ReadOnly(f"cannot create {path}: {error.strerror}") from error
    raw = read(path)
    if is_pointer(raw):
        from holdfast.identity.journal_keys.vault_keys import open_ring

        return open_ring(raw, where=path)
    if is_rescued(raw):
        from holdfast.identity.vault.rescue import read_rescued

        return read_rescued(raw, where=path)
    ring = parse(raw, where=str(path))
    ring.path = path
    return ring


def find_signer(folder: Path) -> Path | None:
    """The socket of the signer that has the keys of the agent in this folder."""
    from holdfast.layout.agent_home import peek_home

    home = peek_home(folder)
    return None if home is None else home.signer


def read(path: Path) -> bytes:
    check_private_file(path)
    try:
        return read_private(path, FILE_BYTES_MAX)
    except PermissionError as error:
        raise KeysMissing(f"cannot read {path}: {error.strerror}", hint=f"`chmod 600 {path}`, as its owner") from None


def is_pointer(raw: bytes) -> bool:
    """Whether the keys are in a vault, of which this says where it is."""
    return format_of_keys(raw) == POINTER


def parse(raw: bytes, *, where: str) -> KeyFile:
    try:
        return _parsed(json.loads(raw))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise KeysWrong(f"{where} is malformed ({type(error).__name__})") from None


def _parsed(fields: Any) -> KeyFile:  # Any: JSON not yet checked
    journals = parse_served(fields.get("journals", []), ring_format=fields["format"])
    listed = cast("list[dict[str, Any]]", fields["journal_keys"])
    journal_keys = {_number(one["id"]): _key(one["key"]) for one in listed}
    current = _number(fields["current"])
    if current not in journal_keys:
        raise ValueError("the list of keys does not have the current key")
    return KeyFile(
        k_effect=_key(fields["k_effect"]), journal_keys=journal_keys, current_journal_key=current, journals=journals
    )


def _key(text: object) -> bytes:
    if not isinstance(text, str):
        raise TypeError("a key must be text")
    raw = bytes.fromhex(text)
    if len(raw) != KEY_BYTES:
        raise ValueError("a key must have 32 bytes")
    return raw


def _number(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError("a key id must be a positive whole number")
    return value


def _create(path: Path, entropy: Entropy) -> None:
    fields = {
        "format": PLAIN,
        "k_effect": entropy.bytes(KEY_BYTES).hex(),
        "current": 1,
        "journal_keys": [{"id": 1, "key": entropy.bytes(KEY_BYTES).hex()}],
    }
    # Never over another's: a journal may have been made with those keys a moment ago.
    create_durably(path, json.dumps(fields, indent=1).encode() + b"\n")
