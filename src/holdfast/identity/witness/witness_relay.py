"""A witness at a relay: submit and fetch of a key log over HTTP. Its key is the one that the address pins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.errors import BadRecord, RelayRefused, RelayUntrusted
from holdfast.identity.log.log_state import KeyLog
from holdfast.identity.records.encodings import AgentId, PublicKey
from holdfast.identity.records.records import id_of, parse_record
from holdfast.identity.records.signed import Reason, Refusal
from holdfast.identity.witness.observe import records_of
from holdfast.identity.witness.relay_link import RelayLink
from holdfast.identity.witness.witness import LogCopy, is_receipt


@dataclass(frozen=True, slots=True)
class RelayWitness:
    """witness.Witness over a link. Raises what the link raises where the relay gives no answer of its own."""

    link: RelayLink

    @property
    def key(self) -> PublicKey:
        return self.link.key

    async def submit(self, line: bytes, receipts: Sequence[bytes] = ()) -> bytes | Refusal:
        try:
            id_ = id_of(parse_record(line))
        except BadRecord as error:
            return Refusal(Reason.MALFORMED, error.message)
        return await self.link.submit_record(id_, join_lines((line, *receipts)))

    async def fetch(self, id: AgentId) -> LogCopy | None:
        content = await self.link.find_log(id)
        if content is None:
            return None
        copy = split_copy(content)
        if not any(id_of(one) == id for one in records_of(copy)):
            raise RelayUntrusted(f"{self.link.address.url}: it sent a key log without any record of {id}")
        return copy


async def bring_log(link: RelayLink, log: KeyLog) -> None:
    """The relay holds all records and receipts of the log afterwards; it registers the agent with the first one.
    Raises RelayNotAdmitted, RelayRefused and the errors of a relay that cannot be reached."""
    raw = await link.find_log(log.id)
    copy = split_copy(raw or b"")
    there = {*copy.records, *copy.receipts}
    for entry in log.entries():
        line, receipts = entry.signed.line(), [one.line() for one in entry.receipts]
        if line in there and there.issuperset(receipts):
            continue
        answer = await link.submit_record(log.id, join_lines((line, *receipts)))
        if isinstance(answer, Refusal) and answer.reason in (Reason.NOT_ADMITTED, Reason.FULL, Reason.MALFORMED):
            raise RelayRefused(f"{link.address.url}: {answer.message}")


def join_lines(lines: Sequence[bytes]) -> bytes:
    return b"".join(line + b"\n" for line in lines)


def split_copy(raw: bytes) -> LogCopy:
    """Records and receipts of a log as they are sent and stored: one in a line."""
    lines = raw.split(b"\n")[:-1]
    return LogCopy(
        records=tuple(line for line in lines if not is_receipt(line)), receipts=tuple(filter(is_receipt, lines))
    )
