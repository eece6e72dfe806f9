"""What every witness does around its decision: read, ask the old witnesses, sign, keep, answer.

Where the log is kept is a `Shelf`'s matter: in memory for tests, in a folder for one machine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol

from holdfast.errors import BadRecord, HoldfastError, InvariantViolated
from holdfast.identity.log.log import NOBODY, add_receipt, witnesses_to_ask
from holdfast.identity.log.log_state import KeyLog
from holdfast.identity.records.ed25519 import Signatures, Signer
from holdfast.identity.records.encodings import AgentId, PublicKey
from holdfast.identity.records.records import (
    Reason,
    Receipt,
    Record,
    Refusal,
    id_of,
    parse_receipt,
    parse_record,
    sign_receipt,
)
from holdfast.identity.records.signed import Signed
from holdfast.identity.witness.observe import merge_copies
from holdfast.identity.witness.witness import LogCopy, Witness, WitnessVerdict, copy_of, judge_record

Clock = Callable[[], int]
Change = Callable[[KeyLog | None], WitnessVerdict | Refusal]
ASK_ROUNDS_MAX = 4  # changes of witnesses that an answer may reveal, one after the other
ASK_S_MAX = 10.0  # an old witness that has not answered by then counts as asked


class LogStore(Protocol):
    """Keeps one log for each agent. `change` is atomic, alone and durable when it returns."""

    def find(self, id: AgentId) -> KeyLog | None: ...

    def change(self, id: AgentId, change: Change) -> WitnessVerdict | Refusal: ...


class WitnessService:
    """A witness over a shelf. `peers` are the other witnesses it can ask, by key."""

    def __init__(
        self,
        store: LogStore,
        signer: Signer,
        *,
        port: Signatures,
        clock: Clock,
        peers: Mapping[PublicKey, Witness] | None = None,
    ) -> None:
        self._store = store
        self._signer = signer
        self._port = port
        self._clock = clock
        self._peers: Mapping[PublicKey, Witness] = {} if peers is None else peers

    @property
    def key(self) -> PublicKey:
        return self._signer.public

    async def submit(self, line: bytes, receipts: Sequence[bytes] = ()) -> bytes | Refusal:
        try:
            signed = parse_record(line)
            vouched = tuple(map(parse_receipt, receipts))
        except BadRecord as error:
            return Refusal(Reason.MALFORMED, error.message)
        id_ = id_of(signed)
        answers, asked = await self._ask(id_, signed)
        judged = await asyncio.to_thread(
            self._store.change, id_, lambda log: self._judged(log, signed, vouched, answers, asked)
        )
        if isinstance(judged, Refusal):
            return judged
        answer = judged.answer
        if isinstance(answer, Receipt):
            raise InvariantViolated("a receipt was kept before it was signed", detail=id_)
        return answer if isinstance(answer, Refusal) else answer.line()

    async def fetch(self, id: AgentId) -> LogCopy | None:
        log = await asyncio.to_thread(self._store.find, id)
        return None if log is None else copy_of(log)

    def _judged(
        self,
        log: KeyLog | None,
        signed: Signed[Record],
        receipts: tuple[Signed[Receipt], ...],
        answers: tuple[LogCopy, ...],
        asked: frozenset[PublicKey],
    ) -> WitnessVerdict | Refusal:
        log = merge_copies(log, answers, id=id_of(signed), port=self._port, asked=asked)
        judged = judge_record(
            log, signed, key=self.key, port=self._port, now=self._clock(), receipts=receipts, asked=asked
        )
        if isinstance(judged, Refusal) or not isinstance(judged.answer, Receipt):
            return judged
        return _with_own(judged.log, sign_receipt(judged.answer, self._signer), self._port)

    async def _ask(self, id_: AgentId, signed: Signed[Record]) -> tuple[tuple[LogCopy, ...], frozenset[PublicKey]]:
        """What the old witnesses hold, and who was asked.

        An answer may show witnesses that this one did not know of; then these are asked as well.
        """
        log = await asyncio.to_thread(self._store.find, id_)
        asked = NOBODY
        answers: tuple[LogCopy, ...] = ()
        for _ in range(ASK_ROUNDS_MAX):
            missing = NOBODY if log is None else witnesses_to_ask(log, signed.record) - asked
            if not missing:
                break
            asked |= missing
            peers = [self._peers[key] for key in sorted(missing) if key in self._peers]
            copies = await asyncio.gather(*(_answer(peer.fetch(id_)) for peer in peers))
            answers += tuple(copy for copy in copies if copy is not None)
            log = merge_copies(log, answers, id=id_, port=self._port, asked=asked)
        return answers, asked


def _with_own(log: KeyLog, receipt: Signed[Receipt], port: Signatures) -> WitnessVerdict | Refusal:
    """The log with the witness's own receipt in it, and that receipt as the answer."""
    after = add_receipt(log, receipt, port=port)
    return after if isinstance(after, Refusal) else WitnessVerdict(log=after, answer=receipt)


async def _answer(asking: Awaitable[LogCopy | None]) -> LogCopy | None:
    try:
        return await asyncio.wait_for(asking, ASK_S_MAX)
    except (HoldfastError, OSError, TimeoutError):
        return None


class MemoryLogStore:
    """Logs in this process; gone with it."""

    def __init__(self) -> None:
        self._logs: dict[AgentId, KeyLog] = {}

    def find(self, id: AgentId) -> KeyLog | None:
        return self._logs.get(id)

    def change(self, id: AgentId, change: Change) -> WitnessVerdict | Refusal:
        judged = change(self._logs.get(id))
        if isinstance(judged, WitnessVerdict):
            self._logs[id] = judged.log
        return judged
