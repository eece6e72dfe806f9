"""The running total: one keyed number over all tasks of a journal, moved by every commit that moves a task.

A chain proves the records of its own task and nothing about the others. With plain SQL and no key a person can cut off
a task's newest records and put its older row back, or delete the task whole: every chain that is left is sound, and the
effect that the lost records call done is made again. The total gives this away:

    total = the sum of element(head, erased) over all tasks, modulo 2^128

A head is the hash of a task's newest record and covers every record before it, so this is a total over all records
that can be checked with one row per task. A commit adds the element of a task's new head and takes away that of its old
one; retention makes an erased task's element that of a tombstone and takes away that of a tombstone that it forgets.
All of it is part of the commit itself, so a crash leaves a total that fits.

Elements are keyed with the ring: without it no one can tell what to add or take away. What is stored is the total plus
a mask that is used once. Without it the difference of two stored totals would show elements to a person who keeps
copies of the file. The mask belongs to the newest record, so that a total cannot be stored beside another one.

Sums can be split: the embedded journal has one writer at a time and keeps one total. A journal whose sessions commit at
the same moment keeps one per session, each moved by its own session's commits alone; all of them together are compared.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterable
from hashlib import blake2b

BYTES = 16
NONCE_BYTES = 8
MODULUS = 1 << 8 * BYTES
KNOWN_MAX = 4_096  # elements at hand; more tasks than this do not move at once


class RunningTotal:
    """Makes, hides and shows the totals of one journal."""

    __slots__ = ("_erased", "_known", "_mask", "_task")

    def __init__(self, k_effect: bytes, journal_id: str) -> None:
        # From the key that is never rotated: a total outlives every journal key.
        key = hmac.digest(k_effect, b"holdfast/total/1\0" + journal_id.encode(), "sha256")
        # Keyed once and copied for each number: every step passes here.
        self._task, self._erased, self._mask = (
            blake2b(key=key, digest_size=BYTES, person=person) for person in (b"task", b"erased", b"mask")
        )
        self._known: dict[bytes, int] = {}  # elements of heads that were moved to

    def element(self, head: bytes, *, erased: bool = False) -> int:
        """What a task with this head adds to the total."""
        keyed = (self._erased if erased else self._task).copy()
        keyed.update(head)
        return int.from_bytes(keyed.digest(), "big")

    def moved(self, before: bytes, after: bytes) -> int:
        """What is added where a task's head moves on; `before` is empty where the task is new. An element is made once:
        most heads that are moved from were moved to by this process."""
        taken = self._known.pop(before, None) if before else 0
        if taken is None:
            taken = self.element(before)
        if len(self._known) >= KNOWN_MAX:
            self._known.clear()
        self._known[after] = added = self.element(after)
        return added - taken

    def of(self, tasks: Iterable[tuple[bytes, bool]]) -> int:
        """The total of tasks, each given by its head and whether it is erased."""
        return sum(self.element(head, erased=erased) for head, erased in tasks) % MODULUS

    def hide(self, total: int, newest: bytes, nonce: bytes = bytes(NONCE_BYTES)) -> bytes:
        """The total as it is stored beside the record with this hash. The nonce is another one each time that it is
        stored there; a hash never comes twice."""
        return nonce + ((total + self._mask_of(newest, nonce)) % MODULUS).to_bytes(BYTES, "big")

    def show(self, stored: bytes, newest: bytes) -> int:
        """The total that is stored beside the record with this hash. Bytes that `hide` did not make for it show a
        number that fits nothing."""
        nonce, hidden = stored[:NONCE_BYTES], stored[NONCE_BYTES:]
        return (int.from_bytes(hidden, "big") - self._mask_of(newest, nonce)) % MODULUS

    def _mask_of(self, newest: bytes, nonce: bytes) -> int:
        keyed = self._mask.copy()
        keyed.update(newest + nonce)
        return int.from_bytes(keyed.digest(), "big")
