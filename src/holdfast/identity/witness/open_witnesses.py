"""The witnesses that an agent can reach, opened by their addresses; a record is brought to all of them.

Only here an address becomes a witness: a new kind of address needs a case in `_open` and, where it
can list the agents whose logs it keeps, one in `list_agents`. A relay lists none: it finds an agent by
the digest of a recovery key (`find_by_recovery_keys`).

A folder becomes a witness only where a person names it as a new one. A known witness that is
missing is reported and never created: a fresh folder would have another key, and the loss of the
witness would stay unnoticed. Opening a relay sends nothing: its key is in the address. Whether a new one answers is
asked by `check_new_relays`, before anything is made that could not be taken back.

To publish is to bring a record to all witnesses and gather their receipts.
Nothing here decides whether the record is good: the caller has put it into its log already, and
every witness judges for itself. Everything may be repeated: a witness answers the same record with
the same receipt. Rounds go on while there is something that a witness has not been told: one that
only the new record names signs after it has seen the receipts of the old ones, and at the end each
of them holds all receipts, so that anyone who asks one of them sees that the record is final.

A witness that lacks earlier records is given them first. One that holds another record instead is
asked for its copy, which goes into the log: so the owner learns that someone else was there.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from holdfast.errors import BadInput, BadRecord, HoldfastError, RelayRefused
from holdfast.host.private_files import check_place
from holdfast.identity.log.log import NOBODY, WitnessKeys
from holdfast.identity.log.log_state import KeyLog, is_final
from holdfast.identity.records.ed25519 import Signatures
from holdfast.identity.records.encodings import AgentId, Digest, PublicKey, parse_agent_id
from holdfast.identity.records.records import Keys, Record
from holdfast.identity.records.signed import Reason, Refusal, Signed
from holdfast.identity.statements.statements import parse_profile
from holdfast.identity.witness.observe import merge_copies, with_receipts
from holdfast.identity.witness.relay_link import open_link
from holdfast.identity.witness.witness import LogCopy, Witness
from holdfast.identity.witness.witness_folder import SEED, Clock, FolderLogStore, WitnessService, witness_signer
from holdfast.identity.witness.witness_relay import RelayWitness
from holdfast.layout.relay_url import parse_relay_url
from holdfast.layout.witness_address import WitnessAddress, WitnessFolder, WitnessRelay, relays_of

AGENTS_MAX = 64  # logs that one witness is asked for, when no one says which agent


@dataclass(frozen=True, slots=True)
class OpenWitnesses:
    """Witnesses by their key, and those that could not be opened, with the reason."""

    by_key: dict[PublicKey, Witness] = field(default_factory=dict[PublicKey, Witness])
    addresses: dict[PublicKey, WitnessAddress] = field(default_factory=dict[PublicKey, WitnessAddress])
    unreachable: dict[str, str] = field(default_factory=dict[str, str])

    def keys(self) -> Keys:
        """All of them as the witnesses of a record: more than half must vouch."""
        members = tuple(self.by_key)
        return Keys(members, majority_of(len(members)))


def majority_of(count: int) -> int:
    """How many of so many must vouch: 1 of 1, 2 of 3 (one offline), 3 of 4 (one liar)."""
    return count // 2 + 1


def open_witnesses(
    addresses: Sequence[WitnessAddress], *, port: Signatures, clock: Clock | None = None, make: bool = False
) -> OpenWitnesses:
    """The witnesses at these addresses. They know each other, as a recovery needs it."""
    found = OpenWitnesses()
    for address in addresses:
        try:
            witness = _open(address, found, port=port, clock=clock or _now, make=make)
        except (HoldfastError, OSError) as error:
            if make:
                raise
            found.unreachable[str(address)] = str(error)
            continue
        found.by_key[witness.key] = witness
        found.addresses[witness.key] = address
    return found


def list_agents(address: WitnessAddress) -> list[AgentId]:
    """The agents whose logs this witness keeps, as far as it lists them."""
    found: list[AgentId] = []
    if not isinstance(address, WitnessFolder):
        return found
    try:
        for path in sorted(address.folder.glob("hf1*.jsonl"))[:AGENTS_MAX]:
            found.append(parse_agent_id(path.stem))
    except (BadRecord, OSError):
        pass
    return found


async def check_new_relays(addresses: Sequence[WitnessAddress], *, port: Signatures) -> None:
    """Each relay among them answers, with the key of its address. Raises RelayUnreachable, RelayUntrusted."""
    await asyncio.gather(*(open_link(one, port=port).describe() for one in relays_of(addresses)))


async def answering(reached: OpenWitnesses) -> OpenWitnesses:
    """The same without the relays that do not answer now; those are named with the reason, as a missing folder is."""
    relays = {key: one for key, one in reached.by_key.items() if isinstance(one, RelayWitness)}
    answers = await asyncio.gather(*(_answer(one.link.describe()) for one in relays.values()))
    silent = {key: one.message for key, one in zip(relays, answers, strict=True) if isinstance(one, Refusal)}
    return OpenWitnesses(
        by_key={key: one for key, one in reached.by_key.items() if key not in silent},
        addresses=reached.addresses,
        unreachable=reached.unreachable | {str(reached.addresses[key]): why for key, why in silent.items()},
    )


async def find_by_recovery_keys(
    digests: Sequence[Digest], reached: OpenWitnesses
) -> tuple[dict[PublicKey, tuple[AgentId, ...]], dict[str, str]]:
    """By relay the agents whose logs commit to one of these keys, and which relay did not answer, with the reason."""
    found: dict[PublicKey, tuple[AgentId, ...]] = {}
    silent: dict[str, str] = {}
    for key, witness in reached.by_key.items():
        if isinstance(witness, RelayWitness):
            answer = await _answer(witness.link.find_agents(tuple(digests)))
            if isinstance(answer, Refusal):
                silent[str(reached.addresses[key])] = answer.message
            else:
                found[key] = answer
    return found, silent


async def find_other_relays(log: KeyLog, reached: OpenWitnesses, *, port: Signatures) -> tuple[WitnessRelay, ...]:
    """Where the witnesses of this log are that were not named, as the agent's profile at the named relays says it. The
    keys are those of the log; a profile that someone else wrote can only lead to a relay that does not have them."""
    named = {key for entry in log.entries() for keys in entry.needs for key in keys.members} - set(reached.addresses)
    found: dict[PublicKey, WitnessRelay] = {}
    for witness in reached.by_key.values():
        if not isinstance(witness, RelayWitness) or not named:
            continue
        raw = await _answer(witness.link.find_profile(log.id))
        if not isinstance(raw, bytes):
            continue
        with contextlib.suppress(BadRecord, BadInput):
            for one in parse_profile(raw).record.relays:
                if one.wit in named:
                    found[one.wit] = WitnessRelay(parse_relay_url(one.url), one.wit)
    return tuple(found.values())


def _open(address: WitnessAddress, others: OpenWitnesses, *, port: Signatures, clock: Clock, make: bool) -> Witness:
    if isinstance(address, WitnessRelay):
        return RelayWitness(open_link(address, port=port))
    folder = address.folder
    check_place(folder, allow_network_fs=True)
    if not make and not os.path.lexists(folder / SEED):
        raise FileNotFoundError(f"there is no file {SEED} in this folder: is the disk mounted, and the path right?")
    store = FolderLogStore(folder, port=port)
    return WitnessService(store, witness_signer(folder), port=port, clock=clock, peers=others.by_key)


def _now() -> int:
    return int(time.time())


ROUNDS_MAX = 4
ANSWER_S_MAX = 30.0  # a witness may itself have to ask others, ten seconds for each
_BEHIND = (Reason.GAP, Reason.NOT_BEGUN, Reason.PREVIOUS_NOT_FINAL, Reason.WRONG_PREVIOUS)
T = TypeVar("T")

Witnesses = Mapping[PublicKey, Witness]


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """What came of it. `refused` says of each witness without a receipt why."""

    log: KeyLog
    final: bool  # the record stands, and enough witnesses vouch for it
    receipts: int
    refused: dict[PublicKey, str]


async def ask_witnesses(
    known: KeyLog | None, id: AgentId, witnesses: Witnesses, *, port: Signatures, asked: WitnessKeys = NOBODY
) -> tuple[KeyLog | None, dict[PublicKey, str]]:
    """The log with all that these witnesses hold, and who did not answer, with the reason."""
    copies, silent = await fetch_copies(id, witnesses)
    return merge_copies(known, list(copies.values()), id=id, port=port, asked=asked), silent


async def fetch_copies(id: AgentId, witnesses: Witnesses) -> tuple[dict[PublicKey, LogCopy], dict[PublicKey, str]]:
    """What each witness holds of this log, and who did not answer, with the reason."""
    answers = await asyncio.gather(*(_answer(one.fetch(id)) for one in witnesses.values()))
    found = dict(zip(witnesses, answers, strict=True))
    copies = {key: answer for key, answer in found.items() if isinstance(answer, LogCopy)}
    return copies, {key: answer.message for key, answer in found.items() if isinstance(answer, Refusal)}


def read_copy(address: WitnessAddress, id: AgentId, *, port: Signatures) -> tuple[PublicKey, LogCopy | None]:
    """The key of the witness at this address, and what it holds of this log. Blocks for as long as a folder does, in
    this thread alone. Raises what opening and asking it raise."""
    witness = _open(address, OpenWitnesses(), port=port, clock=_now, make=False)
    if isinstance(witness, WitnessService):
        return witness.key, witness.find_copy(id)
    return witness.key, asyncio.run(witness.fetch(id))


async def publish(log: KeyLog, signed: Signed[Record], witnesses: Witnesses, *, port: Signatures) -> Published:
    """Send a record of this log to all of the witnesses, and all receipts to each."""
    told: dict[PublicKey, set[bytes]] = {}
    refused: dict[PublicKey, str] = {}
    for _ in range(ROUNDS_MAX):
        lines = _receipts(log, signed)
        waiting = [key for key in witnesses if told.get(key) != set(lines)]
        if not waiting:
            break
        answers = await asyncio.gather(*(_submitted(witnesses[key], log, signed, lines) for key in waiting))
        for key, answer in zip(waiting, answers, strict=True):
            refused.pop(key, None)
            if isinstance(answer, bytes):
                log = with_receipts(log, (answer,), port=port)
                told[key] = {*lines, answer}
                continue
            refused[key] = answer.message
            told[key] = set(lines)
            if answer.reason is Reason.NOBODY_ANSWERED:
                witnesses = {one: witnesses[one] for one in witnesses if one != key}
                continue
            copy = await _answer(witnesses[key].fetch(log.id))
            if isinstance(copy, LogCopy):
                log = merge_copies(log, [copy], id=log.id, port=port) or log
    if not is_settled(log, signed):  # an earlier try may have left receipts of one that is now down
        log = (await ask_witnesses(log, log.id, witnesses, port=port))[0] or log
    return Published(log=log, final=is_settled(log, signed), receipts=len(_receipts(log, signed)), refused=refused)


def is_settled(log: KeyLog, signed: Signed[Record]) -> bool:
    """Whether this record holds its position and is final."""
    position = signed.record.position
    held = log.find(position)
    return held is not None and held.digest == signed.digest and is_final(log, position)


async def _submitted(
    witness: Witness, log: KeyLog, signed: Signed[Record], receipts: tuple[bytes, ...]
) -> bytes | Refusal:
    answer = await _answer(witness.submit(signed.line(), receipts))
    if isinstance(answer, Refusal) and answer.reason in _BEHIND:
        for entry in log.entries():
            if entry.digest == signed.digest:
                break
            known = [receipt.line() for receipt in entry.receipts]
            await _answer(witness.submit(entry.signed.line(), known))
        answer = await _answer(witness.submit(signed.line(), receipts))
    return answer


def _receipts(log: KeyLog, signed: Signed[Record]) -> tuple[bytes, ...]:
    held = log.find(signed.record.position)
    if held is None or held.digest != signed.digest:
        item = log.find_evidence(signed.digest)
        held = None if item is None else item.entry
    return () if held is None else tuple(receipt.line() for receipt in held.receipts)


async def _answer(asking: Awaitable[T]) -> T | Refusal:
    try:
        return await asyncio.wait_for(asking, ANSWER_S_MAX)
    except RelayRefused as error:
        return Refusal(Reason.NOT_ADMITTED, f"the witness refuses: {error.message}")
    except (HoldfastError, OSError, TimeoutError) as error:
        said = str(error) or type(error).__name__
        return Refusal(Reason.NOBODY_ANSWERED, f"the witness gave no answer: {said}")
