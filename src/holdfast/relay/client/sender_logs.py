"""Key logs of senders, looked up beside the taking of mail: a sender that cannot be found holds up no other.

Mail of a sender whose log is not known, or was not asked for lately, waits here. One task for each sender looks: first
at the relays that the agent knows, then at those that the message names. Each look has a time limit, and the pause
before the next one gets longer. Looks at relays that messages name have few turns of their own, because strangers
choose them. All numbers have bounds; what has no room here is forgotten, waits at its relay, and is listed again as
soon as a log is found that makes room.

A sender that cannot be found gives its room up: after some minutes, or at once when another needs it. Its mail is
given back (`given_up`), so that it does not fill the mailbox for the weeks until it expires; an honest sender sends it
again.

A message may not make the agent connect to addresses of this machine or of a private network: hints and profiles of
strangers that name one are ignored, for looks and for delivery notes, unless a relay of the agent is on such an address
itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from holdfast.errors import BadRecord, HoldfastError
from holdfast.host.public_names import NAMES_S, find_public_addresses, is_any_private, is_private_host
from holdfast.identity.log.log_state import KeyLog
from holdfast.identity.records.ed25519 import Signatures
from holdfast.identity.records.encodings import AgentId
from holdfast.identity.records.records import LogPosition
from holdfast.identity.records.signed import Family
from holdfast.identity.statements.certificate import find_fault_by_log, find_inactive, only_planned
from holdfast.layout.witness_address import WitnessRelay
from holdfast.relay.bounded import keep_newest
from holdfast.relay.client.address_book import AddressBook, parse_hints
from holdfast.relay.protocol.calls import FOR_NOW
from holdfast.relay.protocol.envelope import Envelope

LOOKS_MAX, HINTED_MAX = 8, 4  # at the same time: at relays that are known, and at those that messages name
LOOK_S = 15.0  # more than the two questions of one look (find.py) and a name to look up
AGAIN_S, AGAIN_S_MAX = 5.0, 300.0
OF_SENDER_MAX, WAITING_MAX = 16, 256  # messages that wait here, 64 KiB each at most
GIVE_UP_S = 600.0  # how long a sender is looked for
JUDGED_MAX = 1_024  # certificates of senders whose signature was checked

T = TypeVar("T")


@dataclass
class SenderCheck:
    """Whether an envelope is of its sender, by the sender's log."""

    port: Signatures
    _judged: OrderedDict[bytes, KeyLog] = field(default_factory=OrderedDict[bytes, KeyLog])  # by certificate

    def check(self, envelope: Envelope, log: KeyLog) -> None:
        """Raises BadRecord. Times of the certificate were the relay's to judge: mail may wait longer than they last."""
        crt = envelope.certificate
        if crt.record.position > log.position:
            raise BadRecord(f"{FOR_NOW}the key log of its sender is older than its certificate")
        if self._judged.get(envelope.outer.crt) is not log:  # many messages have one certificate
            if find_fault_by_log(crt, Family.CERT, log, self.port) is not None:
                raise BadRecord("the sender's keys did not sign the certificate of the message")
            keep_newest(self._judged, envelope.outer.crt, log, most=JUDGED_MAX)
        if not only_planned(crt.record.position, log) or find_inactive(log) is not None:
            raise BadRecord("the sender's keys were replaced since, because they were stolen or lost")
        if not envelope.is_signed(self.port):
            raise BadRecord("the sender did not sign the message")


@dataclass(eq=False)
class _Wanted(Generic[T]):
    """What waits for the log of one sender."""

    position: LogPosition
    hints: tuple[str, ...]
    waiting: list[T] = field(default_factory=list[T])
    forgotten: bool = False  # mail had no room here: its own, or that of a sender of which nothing waits
    failed: bool = False  # no relay that is known here has it


@dataclass(eq=False)
class SenderLogs(Generic[T]):
    """`found` gets what waited for a log, the log, and whether mail was forgotten that has room now. `given_up` gets
    what waited for a log that cannot be found."""

    book: AddressBook
    found: Callable[[Sequence[T], KeyLog, bool], None]
    given_up: Callable[[Sequence[T]], None]
    look_s: float = LOOK_S
    again_s: float = AGAIN_S
    give_up_s: float = GIVE_UP_S
    _wanted: dict[AgentId, _Wanted[T]] = field(default_factory=dict[AgentId, "_Wanted[T]"])
    _tasks: dict[AgentId, asyncio.Task[None]] = field(default_factory=dict[AgentId, asyncio.Task[None]])
    _turns: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(LOOKS_MAX))
    _hinted: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(HINTED_MAX))

    def find(self, id: AgentId, position: LogPosition) -> KeyLog | None:
        """The log, if it can judge keys of this position now; None while mail of this sender waits: it keeps its
        order."""
        return None if id in self._wanted else self.book.known_log(id, position)

    def wait(self, id: AgentId, position: LogPosition, hints: Sequence[str], item: T) -> bool:
        """Whether the item comes back by `found` or `given_up`; else it is forgotten."""
        wanted = self._wanted.get(id)
        if wanted is not None and item in wanted.waiting:
            return True  # listed again after a new login
        if (wanted is not None and len(wanted.waiting) >= OF_SENDER_MAX) or not self._has_room(but=id):
            for one in self._wanted.values() if wanted is None else (wanted,):
                one.forgotten = True
            return False
        if wanted is None:
            wanted = self._wanted[id] = _Wanted(position, tuple(hints))
            self._tasks[id] = asyncio.create_task(self._look_until_found(id, wanted))
        wanted.position, wanted.hints = max(wanted.position, position), tuple(hints) or wanted.hints
        wanted.waiting.append(item)
        return True

    async def close(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        self._tasks.clear()
        self._wanted.clear()

    def _has_room(self, *, but: AgentId) -> bool:
        """Whether one more may wait; of senders that no known relay has, the one that came first makes room."""
        if sum(len(one.waiting) for one in self._wanted.values()) < WAITING_MAX:
            return True
        first = next((its for its, one in self._wanted.items() if one.failed and its != but), None)
        if first is not None:
            self._tasks[first].cancel()
            self._give_up(first)
        return first is not None

    def _give_up(self, id: AgentId) -> None:
        self.given_up(self._wanted.pop(id).waiting)
        del self._tasks[id]

    async def _look_until_found(self, id: AgentId, wanted: _Wanted[T]) -> None:
        log = await self._looked(id, wanted)
        if log is None:
            return self._give_up(id)
        del self._wanted[id], self._tasks[id]
        for one in self._wanted.values() if wanted.forgotten else ():
            one.forgotten = False  # all mail is listed again now
        return self.found(wanted.waiting, log, wanted.forgotten)

    async def _looked(self, id: AgentId, wanted: _Wanted[T]) -> KeyLog | None:
        """The log, however often it must be asked for; None after `give_up_s`."""
        pause_s, until_s = self.again_s, time.monotonic() + self.give_up_s
        while True:
            log = None
            try:
                log = await self._look(id, wanted)
            except Exception as error:  # noqa: BLE001 - a fault of ours: else its mail would wait for the next start
                told = {"message": f"the key log of {id} cannot be looked up", "exception": error}
                asyncio.get_running_loop().call_exception_handler(told)  # the worker logs it
                wanted.failed = True
            if log is not None or time.monotonic() >= until_s:
                return log
            await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))
            pause_s = min(2 * pause_s, AGAIN_S_MAX)

    async def _look(self, id: AgentId, wanted: _Wanted[T]) -> KeyLog | None:
        log = await self._asked(id, wanted, (), self._turns)
        wanted.failed = log is None
        if wanted.hints and (log is None or log.position < wanted.position):
            async with self._hinted:
                hints = await allowed_hints(parse_hints(wanted.hints), self.book.own_relays())
            if hints:
                log = await self._asked(id, wanted, tuple(map(str, hints)), self._hinted) or log
        return log

    async def _asked(
        self, id: AgentId, wanted: _Wanted[T], hints: Sequence[str], turns: asyncio.Semaphore
    ) -> KeyLog | None:
        async with turns:
            with contextlib.suppress(HoldfastError, OSError, TimeoutError):
                async with asyncio.timeout(self.look_s):
                    return await self.book.log_of(id, wanted.position, hints)
        return None


async def allowed_hints(hints: Iterable[WitnessRelay], own: Iterable[WitnessRelay]) -> list[WitnessRelay]:
    """Those that a stranger may make this agent ask: relays on public addresses, or all if an own relay is on none."""
    if await is_any_private(one.host for one in own):
        return list(hints)
    return [one for one in hints if not is_private_host(one.host) and await _is_public(one)]


async def _is_public(relay: WitnessRelay) -> bool:
    """Whether its name has public addresses only. The name may get others a moment later: so they are looked at again
    when a connection is made."""
    try:
        async with asyncio.timeout(NAMES_S):
            return bool(await find_public_addresses(relay.host))
    except (OSError, UnicodeError):  # a time-out too
        return False
