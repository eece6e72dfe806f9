"""The log of an agent that was lost, put together from whatever has survived.

Sources are witnesses, a copy in a backup, and the public card, which holds the inception and the
newest recovery alone. Nothing of it is believed: every record is verified, and those in between
that the card leaves out are made again from the paper, which gives the same bytes, or the chain
does not close and the card is refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.errors import BadRecord, BadSheet, HoldfastError
from holdfast.identity.log import drafts
from holdfast.identity.log.log import accept, witnesses_to_ask
from holdfast.identity.log.log_state import KeyLog
from holdfast.identity.paper.derive import PaperKeys
from holdfast.identity.records.ed25519 import Signatures
from holdfast.identity.records.encodings import AgentId, PublicKey
from holdfast.identity.records.records import (
    Inception,
    Record,
    Recovery,
    Refusal,
    Retirement,
    Rotation,
    id_of,
    parse_record,
)
from holdfast.identity.records.signed import Signed
from holdfast.identity.witness.observe import RECORDS_MAX, merge_copies
from holdfast.identity.witness.open_witnesses import OpenWitnesses, list_agents
from holdfast.identity.witness.witness import LogCopy


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundLog:
    """One agent's log, as far as it could be joined, and all records that were seen of it."""

    log: KeyLog
    records: tuple[Signed[Record], ...]

    def completed(self, paper: PaperKeys, *, port: Signatures) -> KeyLog:
        """With the recoveries that a card leaves out. Raises BadSheet where they do not fit."""
        tiers = {one.record.g: one for one in self.records if isinstance(one.record, Recovery | Retirement)}
        log = self.log
        while max(tiers, default=0) >= len(log.generations):
            g = len(log.generations)
            signed = tiers.get(g) or _recovery(log, g, paper)
            asked = witnesses_to_ask(log, signed.record)
            after = accept(log, signed, port=port, asked=asked)
            if isinstance(after, Refusal):
                raise BadSheet(
                    f"the recovery of generation {g} is missing: {after.message}",
                    hint="give a copy of kel.jsonl from a backup, or a witness that holds the log",
                )
            log = after
        return log


async def read_logs(copies: Sequence[LogCopy], reached: OpenWitnesses, *, port: Signatures) -> list[FoundLog]:
    """Every agent of which these sources hold the beginning."""
    by_agent: dict[AgentId, list[LogCopy]] = {}
    for copy in copies:
        for id_ in _agents(copy):
            by_agent.setdefault(id_, []).append(copy)
    for key, witness in reached.by_key.items():
        for id_ in {*by_agent, *list_agents(reached.addresses[key])}:
            try:
                held = await asyncio.wait_for(witness.fetch(id_), 10)
            except (HoldfastError, OSError, TimeoutError):
                continue
            if held is not None:
                by_agent.setdefault(id_, []).append(held)
    found: list[FoundLog] = []
    for id_, served in by_agent.items():
        records = tuple(one for copy in served for one in _records(copy) if id_of(one) == id_)
        asked = frozenset(key for one in records for key in _named(one.record))
        log = merge_copies(None, served, id=id_, port=port, asked=asked)
        if log is not None:
            found.append(FoundLog(log=log, records=records))
    return found


def _recovery(log: KeyLog, g: int, paper: PaperKeys) -> Signed[Record]:
    with paper.recovery(g) as by, paper.next(g) as following, paper.recovery(g + 1) as later:
        return drafts.recovery(
            id=log.id,
            g=g,
            rp=log.generations[g - 1].tier.digest,
            by=(by,),
            nxt=drafts.committed((following.public,)),
            rec=drafts.committed((later.public,)),
        )


def _records(copy: LogCopy) -> list[Signed[Record]]:
    parsed: list[Signed[Record]] = []
    for line in copy.records[:RECORDS_MAX]:
        try:
            parsed.append(parse_record(line))
        except BadRecord:
            continue
    return parsed


def _agents(copy: LogCopy) -> set[AgentId]:
    return {id_of(one) for one in _records(copy) if isinstance(one.record, Inception)}


def _named(record: Record) -> tuple[PublicKey, ...]:
    match record:
        case Inception():
            return record.wit.members
        case Rotation() | Recovery():
            return () if record.wit is None else record.wit.members
        case Retirement():
            return ()
