"""What every witness does around its decision: read, ask the old witnesses, sign, keep, answer.

Where the log is kept is a `Shelf`'s matter: in memory for tests, in a folder for one machine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol

from holdfast.errors import BadRecord, HoldfastError, InvariantViolated
from holdfast.identity.log.log import NOBODY, add_receipt, witnesses_to_ask
from holdfast.identity.log.log_state import Log
from holdfast.identity.records.ed25519 import Signatures, Signer
from holdfast.identity.records.encodings import AgentId, PublicKey
from holdfast.identity.records.receipt import Receipt, parse_receipt, sign_receipt
from holdfast.identity.records.records import Record, id_of, parse_record
from holdfast.identity.records.refusal import Reason, Refusal
from holdfast.identity.records.signed import Signed
from holdfast.identity.witness import observe as sight
from holdfast.identity.witness.witness import Copy, Judged, Witness, copy_of, judge

Clock = Callable[[], int]
Change = Callable[[Log | None], Judged | Refusal]
ASK_ROUNDS_MAX = 4  # changes of witnesses that an answer may reveal, one after the other
ASK_S_MAX = 10.0  # an old witness that has not answered by then counts as asked


class Shelf(Protocol):
    """Keeps one log for each agent. `change` is atomic, alone and durable when it returns."""

    def find(self, id: AgentId) -> Log | None: ...

    def change(self, id: AgentId, change: Change) -> Judged | Refusal: ...


class KeepingWitness:
    """A witness over a shelf. `peers` are the other witnesses it can ask, by key."""

    def __init__(
        self,
        shelf: Shelf,
        signer: Signer,
        *,
        port: Signatures,
        clock: Clock,
        peers: Mapping[PublicKey, Witness] | None = None,
    ) -> None:
        self._shelf = shelf
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
            self._shelf.change, id_, lambda log: self._judged(log, signed, vouched, answers, asked)
        )
        if isinstance(judged, Refusal):
            return judged
        answer = judged.answer
        if isinstance(answer, Receipt):
            raise InvariantViolated("a receipt was kept before it was signed", detail=id_)
        return answer if isinstance(answer, Refusal) else answer.line()

    async def fetch(self, id: AgentId) -> Copy | None:
        log = await asyncio.to_thread(self._shelf.find, id)
        return None if log is None else copy_of(log)

    def _judged(
        self,
        log: Log | None,
        signed: Signed[Record],
        receipts: tuple[Signed[Receipt], ...],
        answers: tuple[Copy, ...],
        asked: frozenset[PublicKey],
    ) -> Judged | Refusal:
        log = sight.merged(log, answers, id=id_of(signed), port=self._port, asked=asked)
        judged = judge(log, signed, key=self.key, port=self._port, now=self._clock(), receipts=receipts, asked=asked)
        if isinstance(judged, Refusal) or not isinstance(judged.answer, Receipt):
            return judged
        return _with_own(judged.log, sign_receipt(judged.answer, self._signer), self._port)

    async def _ask(self, id_: AgentId, signed: Signed[Record]) -> tuple[tuple[Copy, ...], frozenset[PublicKey]]:
        """What the old witnesses hold, and who was asked.

        An answer may show witnesses that this one did not know of; then these are asked as well.
        """
        log = await asyncio.to_thread(self._shelf.find, id_)
        asked = NOBODY
        answers: tuple[Copy, ...] = ()
        for _ in range(ASK_ROUNDS_MAX):
            missing = NOBODY if log is None else witnesses_to_ask(log, signed.record) - asked
            if not missing:
                break
            asked |= missing
            peers = [self._peers[key] for key in sorted(missing) if key in self._peers]
            copies = await asyncio.gather(*(_answer(peer.fetch(id_)) for peer in peers))
            answers += tuple(copy for copy in copies if copy is not None)
            log = sight.merged(log, answers, id=id_, port=self._port, asked=asked)
        return answers, asked


def _with_own(log: Log, receipt: Signed[Receipt], port: Signatures) -> Judged | Refusal:
    """The log with the witness's own receipt in it, and that receipt as the answer."""
    after = add_receipt(log, receipt, port=port)
    return after if isinstance(after, Refusal) else Judged(log=after, answer=receipt)


async def _answer(asking: Awaitable[Copy | None]) -> Copy | None:
    try:
        return await asyncio.wait_for(asking, ASK_S_MAX)
    except (HoldfastError, OSError, TimeoutError):
        return None


class MemoryShelf:
    """Logs in this process; gone with it."""

    def __init__(self) -> None:
        self._logs: dict[AgentId, Log] = {}

    def find(self, id: AgentId) -> Log | None:
        return self._logs.get(id)

    def change(self, id: AgentId, change: Change) -> Judged | Refusal:
        judged = change(self._logs.get(id))
        if isinstance(judged, Judged):
            self._logs[id] = judged.log
        return judged
