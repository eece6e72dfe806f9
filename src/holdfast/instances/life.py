"""Whether a folder is still the one that the other instances know, and the only one that sends under its name.

An instance believes of each other one that it has what it confirmed. A folder that was put back to an older day has
less, and nothing in it says so: both sides would be silent. So each folder has a *life*, a random id in `instance/`
that is in every envelope. A folder remembers the envelopes that it sent last. Where the place has another one under its
name, the folder was put back, or is a new one with an old name: it begins a new life, and who hears of a new life
forgets what it believed (`Merging`).

The same tells a second folder with the same key: while this one runs, an envelope of another life is under its name.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

import msgspec

from holdfast.errors import HoldfastError, UpdateRefused
from holdfast.instances.channels import NEWEST, Channel
from holdfast.instances.envelope import Peers, digest_of, open_parcel
from holdfast.instances.merge_state import SAID_MS, MergeState
from holdfast.instances.shared_files import SharedFile
from holdfast.layout.agent_home import HEARTBEAT_FILE, MEMORY_FILE, MemoryPlace
from holdfast.memory.lines import is_day

PAUSE_MS, FIRST_PAUSE_MS = 60_000, 10_000


def begun(state: MergeState, channel: Channel, me: str) -> MergeState:
    """The life that the folder has from now on. Raises OSError where the place cannot be read."""
    there: bytes | None = b""
    with contextlib.suppress(HoldfastError):
        there = channel.read(me, NEWEST)
    if state.life and there is not None and digest_of(there).hex() in state.sent:
        return state
    return msgspec.structs.replace(state, life=os.urandom(8).hex(), sent=())


def sending(state: MergeState, raw: bytes) -> MergeState:
    """Kept before the envelope is put there: a kill leaves either the last one or this one."""
    return msgspec.structs.replace(state, sent=(*state.sent[:1], digest_of(raw).hex()))


def after_sending(state: MergeState, raw: bytes) -> MergeState:
    """It is there."""
    return msgspec.structs.replace(state, sent=(digest_of(raw).hex(),))


def two_folders(name: str) -> UpdateRefused:
    return UpdateRefused(
        f"two folders send memory updates as {name}: a package of `holdfast instance invite` was used twice, or a "
        "machine was cloned",
        hint=f"stop one of the two. For the other: `holdfast instance remove {name}`, then invite it again",
    )


class Rival:
    """Another folder that sends under this instance's name, with its key. While one does, this folder sends once a
    minute: each new life costs the other instances a look at every file. The first time it sends sooner, so that they
    see a life come back, and say so."""

    def __init__(self, channel: Channel, peers: Peers, key: bytes) -> None:
        self._channel, self._peers, self._key = channel, peers, key
        self._digest = b""  # of its newest envelope
        self.seen_ms = self.since_ms = 0  # when that came, and the first one; 0: there is none
        self._answered = False  # whether this folder has sent since the first one

    def is_over(self, now_ms: int) -> bool:
        return 0 < self.seen_ms <= now_ms - SAID_MS

    def is_sending(self, now_ms: int) -> bool:
        if self.seen_ms and not self._answered:
            self._answered = now_ms - self.since_ms >= FIRST_PAUSE_MS
            return not self._answered
        return bool(self.seen_ms) and now_ms - self.seen_ms < PAUSE_MS

    def look(self, mark: object, *, life: str, since_ms: int, now_ms: int) -> None:
        """Whether the place has another envelope than the one with this mark, which was put there. One from before this
        process does not count: a program that copies folders may bring an old one back."""
        if self.is_over(now_ms):
            self.seen_ms, self.since_ms, self._answered = 0, 0, False
        if mark is None or self._channel.own().get(NEWEST) == mark:
            return
        with contextlib.suppress(HoldfastError):
            raw = self._channel.read(self._peers.me, NEWEST) or b""
            parcel = open_parcel(raw, self._peers, self._key, sender=self._peers.me)
            if parcel.life != life and parcel.at_ms > since_ms and digest_of(raw) != self._digest:
                self._digest, self.seen_ms, self.since_ms = digest_of(raw), now_ms, self.since_ms or now_ms


def documents(place: MemoryPlace) -> Iterator[str]:
    """The memory files of which there is a document here."""
    for path in sorted(place.private.glob("*.doc")):
        name = path.name.removesuffix(".doc")
        if name in (MEMORY_FILE, HEARTBEAT_FILE) or is_day(name.removesuffix(".md")):
            yield name


def forget(shared: SharedFile, instance: str) -> None:
    """Nothing is known any more of what that instance has of the file; durable on return. Hold the place's lock."""
    if shared.document.document is not None and shared.document.known.pop(instance, None) is not None:
        shared.store()
