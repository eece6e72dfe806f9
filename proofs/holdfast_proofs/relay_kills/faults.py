"""Faults that the trials must find: the order of commit and answer turned round, in a forked process alone."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

from holdfast.app.mail.intake import Intake
from holdfast.core.mail import Delivery
from holdfast.host.sqlite import CommitTimes
from holdfast.relay.server.store import Store
from holdfast_proofs.weakened import Weakness, weaken

EARLY = "early-answer"  # the relay answers, and commits a moment later
EARLY_ACK = "early-ack"  # the recipient acknowledges before its journal has the message
KEY_PER_ATTEMPT = "key-per-attempt"  # each attempt to send has a key of its own
FAULTS = (EARLY, EARLY_ACK, KEY_PER_ATTEMPT)
LATE_S = 0.05


def plant(fault: str) -> None:
    if fault == EARLY:
        Store._commit = _answers_first
        setattr(CommitTimes, "slow", True)  # noqa: B010 - it is a property. In a thread: the loop answers while it sleeps
    elif fault == EARLY_ACK:
        Intake.take = _acknowledges_first
    elif fault == KEY_PER_ATTEMPT:
        weaken(Weakness.KEY_PER_ATTEMPT)


def _answers_first(self: Store, jobs: list[Any]) -> None:  # Any: acts of the store
    self._db.execute("BEGIN IMMEDIATE")
    results: list[tuple[Future[Any], Any, BaseException | None]] = [(done, *self._acted(act)) for act, done, _ in jobs]
    for done, result, error in results:
        if error is None:
            done.set_result(result)
        else:
            done.set_exception(error)
    time.sleep(LATE_S)
    self._db.execute("COMMIT")


async def _acknowledges_first(self: Intake, deliveries: Sequence[Delivery]) -> None:
    mark = await self.newest_record()
    await self.mailbox.received(deliveries, mark=mark)
    for one in deliveries:
        await self._commit(one)
