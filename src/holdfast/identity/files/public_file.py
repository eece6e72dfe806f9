"""identity.json: what an agent shows of itself, for people and programs that do not read logs.

The log is the truth about keys; head, standing and witnesses here repeat it and are written after
it, so a crash in between leaves a file that is one record behind and is put right by the next
command. The register of sheets, handles, relays and the note about an imported key are kept here
alone. The file is replaced as a whole; `change_identity` lets one process at a time do so.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

import msgspec

from holdfast.core.decoding import decode_json
from holdfast.errors import BadInput, BadRecord, LogDamaged, LogMissing
from holdfast.host.private_files import read_private, write_atomically
from holdfast.identity.files.own_log import home_lock
from holdfast.identity.log.log_state import KeyLog, LogStanding, is_final
from holdfast.identity.paper.sheets import SheetRegister, parse_register
from holdfast.identity.records.encodings import parse_agent_id, parse_digest
from holdfast.layout.agent_home import AgentHome
from holdfast.layout.witness_address import WitnessRelay, parse_relay_address, relays_of

FORMAT = 1
FILE_BYTES_MAX = 1 << 20
LIST_MAX = 64


class LogHead(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The newest record of the log, and whether enough witnesses have vouched for it."""

    g: int
    s: int
    digest: str
    final: bool


class WitnessSet(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    keys: tuple[str, ...]
    needed: int


class ImportedKey(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The first operational key existed before the agent: others may hold it until a rotation."""

    key: str
    kind: str  # openssh or seed
    date: str


class Identity(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    format: int
    name: str
    id: str
    head: LogHead
    standing: str
    witnesses: WitnessSet
    handles: tuple[str, ...] = ()
    relays: tuple[str, ...] = ()
    paper: SheetRegister = msgspec.field(default_factory=SheetRegister)
    imported: ImportedKey | None = None


def identity_of(log: KeyLog, *, name: str, imported: ImportedKey | None = None) -> Identity:
    """What a log shows, for an agent of this name."""
    (g, s), digest, wit = log.position, log.head.digest, log.head.witnesses
    return Identity(
        format=FORMAT,
        name=name,
        id=log.id,
        head=LogHead(g=g, s=s, digest=digest, final=is_final(log, log.position)),
        standing=log.standing.value,
        witnesses=WitnessSet(keys=wit.members, needed=wit.needed),
        imported=imported,
    )


def with_log(identity: Identity, log: KeyLog) -> Identity:
    """The same with what the log says now."""
    if identity.id != log.id:
        raise LogDamaged(f"identity.json belongs to {identity.id}, but the key log belongs to {log.id}")
    now = identity_of(log, name=identity.name)
    # After the first record an imported key counts no more.
    imported = None if log.position > (0, 0) else identity.imported
    return msgspec.structs.replace(
        identity, head=now.head, standing=now.standing, witnesses=now.witnesses, imported=imported
    )


def show_log(path: Path, log: KeyLog, *, name: str) -> Identity:
    """identity.json says what the log says; a damaged one is kept aside and rewritten. It follows from the log, all but
    the register of sheets: that must never stop an act which the witnesses have taken already."""
    try:
        read_identity(path)
    except (LogMissing, LogDamaged) as error:
        if isinstance(error, LogDamaged):
            os.replace(path, path.with_name(f"{path.name}.damaged"))
        write_identity(path, identity_of(log, name=name))
    return change_identity(path, lambda one: with_log(one, log))


def find_relays(home: AgentHome) -> tuple[WitnessRelay, ...]:
    """The relays of the agent in this folder: those among its witnesses, and those of its profile."""
    named: tuple[str, ...] = ()
    with contextlib.suppress(LogMissing, LogDamaged):
        named = read_identity(home.identity_file).relays
    found = list(relays_of(home.witnesses))
    for text in named:
        with contextlib.suppress(BadInput):
            found.append(parse_relay_address(text))
    return tuple({one.key: one for one in found}.values())


def read_identity(path: Path) -> Identity:
    """Raises LogMissing where there is none, LogDamaged where it is malformed."""
    try:
        raw = read_private(path, FILE_BYTES_MAX + 1)
    except FileNotFoundError:
        raise LogMissing(f"there is no {path.name} in {path.parent}") from None
    try:
        found = decode_json(raw, Identity)
        _check(found)
    except (msgspec.DecodeError, RecursionError, BadInput, BadRecord, ValueError) as error:
        raise LogDamaged(f"{path} is malformed: {error}") from None
    return found


def write_identity(path: Path, identity: Identity) -> None:
    """Replace the file. Someone who changes what is there uses change_identity."""
    _check(identity)
    raw = msgspec.json.format(msgspec.json.encode(identity), indent=1) + b"\n"
    write_atomically(path, raw)


def change_identity(path: Path, decide: Callable[[Identity], Identity]) -> Identity:
    """Read, decide, replace; one process at a time."""
    with home_lock(path.parent):
        before = read_identity(path)
        after = decide(before)
        if after != before:
            write_identity(path, after)
        return after


def _check(identity: Identity) -> None:
    if identity.format != FORMAT:
        raise ValueError(f"it has format {identity.format}, not {FORMAT}")
    if parse_agent_id(identity.id) != identity.id:
        raise ValueError("its id is not in lower case")
    parse_digest(identity.head.digest)
    LogStanding(identity.standing)
    if max(map(len, (identity.handles, identity.relays, identity.witnesses.keys))) > LIST_MAX:
        raise ValueError(f"it has more than {LIST_MAX} handles, relays or witnesses")
    parse_register(msgspec.json.encode(identity.paper))
