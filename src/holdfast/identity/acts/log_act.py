"""The last part of every act on the key log (publish, take over, show), and rotation.

A record comes here after it was written to `pending.jsonl`, and the keys that it names are safe.
The order, and why:

    publish       the same bytes, as often as needed, until enough witnesses vouch
    places        a recovery is published beside the backups too; another one that came first ends this one here
    kel.jsonl     from here on the agent itself knows the record
    key set       the vaults settle on what the log says, and forget the keys before it
    settings      where the witnesses are, if the record named others
    identity.json what others are shown
    pending       gone; the act is over

A kill anywhere in between leaves the pending record, and anyone who runs the command again goes
through the same steps with the same bytes.

A rotation makes new operational and next keys, by the next key that the log has committed to: the vaults
settle on what the log says; new keys are staged in both of them, synced, read back and tried out; the record
is built from exactly these and kept (`prepare`); only then is it sent (`finish`). So nothing that a witness
ever sees names a key that is not safe, and whatever was sent can be sent again.

Where an earlier rotation is pending it is finished first. If that was the one asked for, that is
all; otherwise another one follows.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from holdfast.core.clock import Entropy
from holdfast.errors import InvariantViolated, KeysReplaced, NotFinal, NotNow, VaultDamaged
from holdfast.host.private_files import locked
from holdfast.identity.files.own_log import clear_pending, extend_own_log, find_pending, read_own_log, write_pending
from holdfast.identity.files.public_file import Identity, show_log
from holdfast.identity.log import drafts
from holdfast.identity.log.log import accept, witnesses_to_ask
from holdfast.identity.log.log_state import KeyLog, LogStanding, is_final
from holdfast.identity.records.ed25519 import Signatures
from holdfast.identity.records.encodings import PublicKey, key_bytes, key_digest, key_text
from holdfast.identity.records.records import Inception, Keys, Record, Rotation, RotationReason
from holdfast.identity.records.signed import Refusal, Signed
from holdfast.identity.vault.keyset import KeySet
from holdfast.identity.witness.open_witnesses import (
    OpenWitnesses,
    answering,
    ask_witnesses,
    check_new_relays,
    is_settled,
    open_witnesses,
    publish,
)
from holdfast.layout.agent_home import AgentHome, load_home
from holdfast.layout.moved import check_not_moved
from holdfast.layout.rescued import check_not_rescued
from holdfast.layout.settings import write_identity_settings
from holdfast.layout.witness_address import WitnessAddress

LOCK = ".identity.lock"
Publish = Callable[[KeyLog], Awaitable[None]]  # beside the places; raises KeysReplaced where another recovery is there


async def nowhere(log: KeyLog) -> None:
    """For acts that publish to witnesses alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActResult:
    """What an act on the log has led to, for the screen."""

    log: KeyLog
    receipts: int = 0
    refused: dict[str, str] | None = None  # by place: why it did not vouch


@dataclass(slots=True, kw_only=True)
class LogSession:
    """One agent's log at hand, and the witnesses that can be reached."""

    home: AgentHome
    port: Signatures
    reached: OpenWitnesses
    log: KeyLog
    beside_places: Publish = nowhere

    @property
    def folder(self) -> Path:
        return self.home.folder

    def place(self, key: PublicKey) -> str:
        address = self.reached.addresses.get(key)
        return key if address is None else str(address)

    def add(self, signed: Signed[Record]) -> None:
        """Put our own record into the log at hand; refused where others would refuse it."""
        asked = witnesses_to_ask(self.log, signed.record)
        after = accept(self.log, signed, port=self.port, asked=asked)
        if isinstance(after, Refusal):
            raise KeysReplaced(
                f"the key log does not accept the new record at {signed.record.position}: {after.message}"
            )
        self.log = after

    def prepare(self, signed: Signed[Record]) -> None:
        """Keep the record before anybody sees it."""
        self.add(signed)
        write_pending(self.folder, signed)

    async def finish(self, signed: Signed[Record], keys: KeySet | None) -> ActResult:
        """Publish a pending record and take over what follows from it."""
        said = await publish(self.log, signed, self.reached.by_key, port=self.port)
        self.log = said.log
        refused = {self.place(key): why for key, why in said.refused.items()} | self.reached.unreachable
        if not said.final:
            _raise_not_final(self.log, signed, said.receipts, refused)
        await self.beside_places(self.log)
        self.log = extend_own_log(self.folder, self.log, self.port)
        if keys is not None:
            settle(keys, self.log)
        self._keep_places()
        self.show()
        clear_pending(self.folder)
        return ActResult(log=self.log, receipts=said.receipts, refused=refused)

    def show(self) -> Identity:
        """identity.json says what the log says."""
        return show_log(self.home.identity_file, self.log, name=self.home.name)

    def find_pending(self) -> Signed[Record] | None:
        """A record of this agent that an earlier run may have sent, if it is not over. One of a generation that a
        recovery has beaten, or whose position another final record holds, can never count any more and is removed."""
        signed = find_pending(self.folder)
        if signed is None:
            return None
        position = signed.record.position
        held = self.log.find(position)
        other = held is not None and held.digest != signed.digest
        beaten = position.g < self.log.position.g or (other and is_final(self.log, position))
        if beaten and not is_settled(self.log, signed):
            clear_pending(self.folder)
            return None
        return signed

    def _keep_places(self) -> None:
        """holdfast.toml names the witnesses that the log now names, as far as they are known. Those of the last
        recovery record stay: a recovery that names no others needs them."""
        head, tier = self.log.head.witnesses, self.log.generations[-1].tier.witnesses
        places = self.reached.addresses
        if not all(key in places for key in head.members):
            return
        known = tuple(dict.fromkeys(places[key] for key in (*head.members, *tier.members) if key in places))
        if set(known) == set(self.home.witnesses):
            return
        changed = msgspec.structs.replace(self.home.settings.identity, witnesses=tuple(map(str, known)))
        write_identity_settings(self.home.settings_file, name=self.home.name, identity=changed)
        self.home = load_home(self.folder)


async def open_log_session(
    home: AgentHome,
    *,
    port: Signatures,
    more: Sequence[WitnessAddress] = (),
    make: Sequence[WitnessAddress] = (),
    promoting: bool = False,
) -> LogSession:
    """The agent's log with all that its witnesses hold; `make` are addresses of new witnesses. Raises MovedAway,
    IsStandby: a copy that was left behind must not change the keys under the new one, nor a standby, unless it is
    `promoting`; RescuedCopy."""
    if not promoting:
        check_not_moved(home.instance)
    check_not_rescued(home.folder)
    if make:
        await check_new_relays(make, port=port)
        # Named before anything is sent: anyone who goes on after a kill must be able to reach them.
        fresh = open_witnesses(make, port=port, make=True)
        named = dict.fromkeys((*home.witnesses, *fresh.addresses.values()))
        settings = msgspec.structs.replace(home.settings.identity, witnesses=tuple(map(str, named)))
        write_identity_settings(home.settings_file, name=home.name, identity=settings)
        home = load_home(home.folder)
    reached = await answering(open_witnesses([*home.witnesses, *more, *make], port=port))
    log = read_own_log(home.folder, port)
    session = LogSession(home=home, port=port, reached=reached, log=log)
    await refresh(session)
    return session


async def refresh(session: LogSession) -> dict[str, str]:
    """Take in what the witnesses hold; who did not answer."""
    named = (key for entry in session.log.entries() for keys in entry.needs for key in keys.members)
    asked = frozenset((*session.reached.by_key, *named))  # one that is gone counts as asked
    reached = session.reached
    log, silent = await ask_witnesses(session.log, session.log.id, reached.by_key, port=session.port, asked=asked)
    session.log = log or session.log
    return {session.place(key): why for key, why in silent.items()} | reached.unreachable


def settle(keys: KeySet, log: KeyLog) -> None:
    """The vaults take over what the log says. Raises KeysReplaced where it names other keys."""
    named = log.operational
    if named is None:
        return
    try:
        keys.settle(op=key_bytes(named.members[0]))
    except VaultDamaged as error:
        raise KeysReplaced(
            f"{log.id}: this vault does not have the operational key that the key log names at {log.position}"
        ) from error


@contextmanager
def act_lock(folder: Path) -> Generator[None]:
    """One act on an agent's log at a time; the second waits, and sees what the first did."""
    with locked(folder / LOCK):
        yield


def _raise_not_final(log: KeyLog, signed: Signed[Record], receipts: int, refused: dict[str, str]) -> None:
    position = signed.record.position
    held = log.find(position)
    if held is None:
        raise InvariantViolated("a record disappeared from the key log while Holdfast published it", detail=log.id)
    why = "; ".join(f"{place}: {reason}" for place, reason in refused.items())
    why = f" ({why})" if why else ""
    if held.digest != signed.digest:
        none = ", and no record there is final" if log.standing is LogStanding.CONTESTED else ""
        raise KeysReplaced(
            f"{log.id}: the record at {position} in the key log is not the one that Holdfast sent{none}{why}"
        )
    needed = max(keys.needed for keys in held.needs)
    raise NotFinal(f"only {receipts} of {needed} required witnesses signed a receipt for the record at {position}{why}")


async def rotate_identity(
    session: LogSession, keys: KeySet, *, why: RotationReason, entropy: Entropy, wit: Keys | None = None
) -> ActResult:
    """Rotate once. Safe to repeat after a kill: a rotation that was begun is finished. Raises NotNow (locked, contested
    or retired), KeysReplaced (someone else has rotated; only the paper helps), NotFinal (sent, too few vouch)."""
    pending = session.find_pending()
    if pending is not None:
        done = await _go_on(session, keys, pending)
        record = pending.record
        if isinstance(record, Rotation) and record.why is why and wit is None:
            return done
    check_active(session.log)
    settle(keys, session.log)
    if why is not RotationReason.PLANNED:
        keys.abandon()  # anyone who stole the vault has what was staged in it; nothing names it yet
    staged = keys.stage(entropy)
    if wit is not None and wit == session.log.head.witnesses:
        wit = None
    session.prepare(_rotation(session.log, keys, why=why, wit=wit))
    signed = session.find_pending()
    if signed is None or staged != keys.find_pending():
        raise KeysReplaced(
            f"{session.log.id}: another process changed the new keys in the vault before Holdfast could use them",
            hint="wait until the other process ends, then run the same command again",
        )
    return await session.finish(signed, keys)


def check_active(log: KeyLog) -> None:
    """Refuse where no rotation by a next key is possible."""
    match log.standing:
        case LogStanding.ACTIVE:
            return
        case LogStanding.RETIRED:
            raise NotNow(
                f"{log.id} is retired", hint="nothing can make it active again; `holdfast init NAME` makes a new agent"
            )
        case LogStanding.LOCKED:
            raise NotNow(
                f"{log.id} is locked by the recovery at {log.position}",
                hint="run `holdfast identity evict --paper` or `holdfast identity recover` to unlock it",
            )
        case LogStanding.CONTESTED:
            raise NotNow(
                f"{log.id} is contested: the key log has two records at one position, and neither is final",
                hint="run `holdfast identity evict --paper` to settle it",
            )


async def _go_on(session: LogSession, keys: KeySet, pending: Signed[Record]) -> ActResult:
    session.add(pending)
    if isinstance(pending.record, Rotation):
        keys.get_op(key_bytes(pending.record.op.members[0])).wipe()  # refuses one whose keys are not here: not ours
        return await session.finish(pending, keys)
    return await session.finish(pending, None)


def _rotation(log: KeyLog, keys: KeySet, *, why: RotationReason, wit: Keys | None) -> Signed[Record]:
    staged = keys.find_pending()
    head = log.head.record
    if staged is None or not isinstance(head, Inception | Rotation):
        raise VaultDamaged("the vault does not have the new keys for this rotation")
    following = keys.current().next
    if key_digest(key_text(following)) not in head.nxt.members:
        raise KeysReplaced(f"{log.id}: the next key in the vault is not the one that the key log names")
    nxt = drafts.committed((key_text(staged.next),))
    with keys.get_next(following) as by, keys.get_op(staged.op) as op:
        return drafts.rotation(log, by=(by,), op=(op,), nxt=nxt, why=why, wit=wit)
