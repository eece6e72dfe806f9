"""When mail that was received is safe enough for its relays to delete it.

`received` is said after the commit, and the relays keep the message as held mail: a journal that is restored from an
older snapshot lacks it, and gets it again. `secured` ends that. It is said

* at once, where every commit is on a synchronous standby too;
* else when a verified snapshot covers the record, however long that takes, and never sooner than 2 x `watch_s` after
  `received`: a machine that was evicted, and has not heard of it, may have received the mail, and hears of it in time;
* for an agent without any place for backups, after that time alone: nothing will ever cover the record.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

WATCHES = 2


class Received(NamedTuple):
    """`received` was said at this time, on a clock that never falls; the journal's last record had this number."""

    at_s: float
    mark: int


def secured_up_to(
    received: Iterable[Received], *, now_s: float, watch_s: float, on_standby: bool, covered: int | None
) -> int:
    """The mark up to which mail is secured; 0 where none is. `covered`: the number of the last record in the newest
    verified snapshot, 0 where no snapshot is verified yet; None for an agent without a place."""
    if on_standby:
        return max((one.mark for one in received), default=0)
    due = max((one.mark for one in received if now_s - one.at_s >= WATCHES * watch_s), default=0)
    return due if covered is None else min(due, covered)
