"""`instance/enrolment.json`: the key by which the other instances of the agent know this folder.

The key of an instance (lease_holder.py) is made again at each boot. The one by which an instance is enrolled must
outlive the boot, because its owner names it once, but not the folder: it is in `instance/`, which is in no backup, and
says where it was made. If the folder is found on another machine or under another inode, it is a copy: the seed is
overwritten and the file removed, and the copy is enrolled no more. It opens without a person, so that a worker can sign
with it.

A machine that was cloned with its machine id and inodes has the key twice. That gives the clone no right that the lease
or the journal would not refuse: being enrolled is needed to act, and never enough.
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from holdfast.core.clock import Clock
from holdfast.core.decoding import decode_json
from holdfast.errors import BadInput, InstanceDamaged
from holdfast.host.private_files import (
    destroying,
    ensure_private_folder,
    read_private,
    remove_durably,
    write_atomically,
)
from holdfast.identity.files.own_log import find_own_log
from holdfast.identity.files.roster_file import ROSTER, read_roster
from holdfast.identity.lease.instance import Instance, Origin, Site, origin_of
from holdfast.identity.lease.lease_holder import site_of
from holdfast.identity.records.ed25519 import Signatures
from holdfast.identity.records.encodings import AgentId, PublicKey, parse_agent_id, parse_digest
from holdfast.identity.records.secret_bytes import KeyPair, SecretBytes
from holdfast.identity.statements.certificate import Role
from holdfast.identity.statements.roster import RosterView

FORMAT = 1
NAME = "enrolment.json"
FILE_BYTES_MAX = 16 * 1024


class _File(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    format: int
    id: str
    public: str
    seed: str
    site: Site


def find_enrolment(instance: Path, *, id: AgentId, clock: Clock) -> KeyPair | None:
    """The key of this folder, to sign with; wipe it after use. None where the folder has none, or had that of another
    one, which is destroyed here. Raises InstanceDamaged."""
    path = instance / NAME
    try:
        raw = read_private(path, FILE_BYTES_MAX)
    except FileNotFoundError:
        return None
    try:
        kept, key = _parsed(decode_json(raw, _File))
    except (msgspec.DecodeError, BadInput, ValueError, RecursionError) as error:
        raise InstanceDamaged(
            f"{path} is malformed: {type(error).__name__}",
            hint="remove the file; this folder is then not enrolled: run `holdfast instance invite` on another host",
        ) from None
    site = site_of(instance, clock)
    origin = origin_of(kept, site, id)
    if origin in (Origin.COPIED, Origin.OTHER):
        key.wipe()
        destroy_enrolment(instance)
        return None
    if origin is Origin.REBOOTED:
        keep_enrolment(instance, key, id=id, clock=clock)  # from here on the device counts again
    return key


def find_own_key(instance: Path, *, id: AgentId, clock: Clock) -> PublicKey | None:
    """What others know this folder by. Raises as `find_enrolment` does."""
    key = find_enrolment(instance, id=id, clock=clock)
    if key is None:
        return None
    with key:
        return key.public


def own_role(home_folder: Path, instance: Path, *, clock: Clock, port: Signatures) -> Role | None:
    """The role of this folder by the roster in its home: primary where there is no roster that counts, None where the
    roster does not have it. Asks nobody else."""
    if not os.path.lexists(home_folder / ROSTER):
        return Role.PRIMARY
    log = find_own_log(home_folder, port)
    view = RosterView() if log is None else read_roster(home_folder, log, port)
    if log is None or not view:
        return Role.PRIMARY
    key = find_own_key(instance, id=log.id, clock=clock)
    own = None if key is None else view.find(key)
    return None if own is None else own.role


def keep_enrolment(instance: Path, key: KeyPair, *, id: AgentId, clock: Clock) -> None:
    """From here on this folder has this key; durable on return."""
    ensure_private_folder(instance)
    whole = _File(format=FORMAT, id=id, public=key.public, seed=key.seed().hex(), site=site_of(instance, clock))
    with destroying(instance / NAME):
        write_atomically(instance / NAME, msgspec.json.encode(whole) + b"\n")


def destroy_enrolment(instance: Path) -> None:
    """Safe to repeat."""
    with destroying(instance / NAME):
        remove_durably(instance / NAME)


def _parsed(found: _File) -> tuple[Instance, KeyPair]:
    key = KeyPair(SecretBytes(bytes.fromhex(found.seed)))
    if found.format != FORMAT or key.public != found.public:
        raise ValueError("it has another format, or its public key does not match its seed")
    parse_digest(found.site.machine)
    return Instance(id=parse_agent_id(found.id), key=key.public, site=found.site), key
