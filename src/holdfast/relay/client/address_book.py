"""Where other agents are to be reached, and which keys speak for them: `peers.json`, hints, then the own relays.

Whatever brings a profile, it proves itself against the agent's key log, and an older one than was seen is refused
(`find.py`). Logs are kept in memory, and asked for again after some minutes or when mail names newer keys: an agent
that was recovered is believed under its new keys, and what the old ones sign is refused.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from holdfast.core.mail import id_in
from holdfast.errors import BadInput, HoldfastError, MailUnsent
from holdfast.host.public_names import is_any_private
from holdfast.identity.log.log_state import KeyLog
from holdfast.identity.records.ed25519 import Signatures
from holdfast.identity.records.encodings import AgentId
from holdfast.identity.records.records import LogPosition
from holdfast.identity.records.signed import Signed
from holdfast.identity.statements.statements import EncryptionKey, Profile, find_bad_url, parse_profile, profile_stands
from holdfast.layout.witness_address import WitnessRelay, parse_relay_address
from holdfast.relay.bounded import keep_newest
from holdfast.relay.client.find import (
    FoundAgent,
    check_not_older,
    find_agent,
    find_known,
    find_peer,
    keep_peer,
    public_of,
)
from holdfast.relay.client.profile import addresses_of, is_signed_by
from holdfast.relay.protocol.envelope import HINTS_MAX

FRESH_S = 300.0
UNSURE_S = 10.0  # after the name of an own relay could not be looked up
KNOWN_MAX = 2_048
SCHEME = "hf:"


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    profile: Signed[Profile]
    log: KeyLog
    at: float = field(default_factory=time.monotonic)
    public_only: bool = False  # a stranger chose its relays
    relays: tuple[WitnessRelay, ...] = field(init=False)

    def __post_init__(self) -> None:
        listed = addresses_of(self.profile.record)
        object.__setattr__(self, "relays", tuple(public_of(listed) if self.public_only else listed))

    @property
    def id(self) -> AgentId:
        return self.profile.record.id

    def newest_key(self, now: int) -> EncryptionKey | None:
        return max((one for one in self.profile.record.enc if one.exp > now), key=lambda one: one.exp, default=None)


def parse_address(text: str) -> tuple[str, tuple[WitnessRelay, ...]]:
    """An id or handle, and the relays to ask: `hf:ID?r=https://host%23z6Mk...`. Raises BadInput."""
    if not text.startswith(SCHEME):
        return text, ()
    parts = urlsplit(text)
    hints = parse_qs(parts.query).get("r", [])
    return parts.path, tuple(map(parse_relay_address, hints[:HINTS_MAX]))


@dataclass
class AddressBook:
    path: Path
    own_relays: Callable[[], Sequence[WitnessRelay]]
    port: Signatures
    now: Callable[[], int] = lambda: int(time.time())
    _known: OrderedDict[str, Peer] = field(default_factory=OrderedDict[str, Peer])
    _own: tuple[float, tuple[str, ...], bool] = (0.0, (), False)  # when own relays were looked up, and what was found
    _kept: tuple[tuple[int, int, int], frozenset[str]] = ((0, 0, 0), frozenset())  # the file, and who is known in it

    async def find(self, to: str, *, hints: Sequence[str] = (), fresh: bool = False, stranger: bool = False) -> Peer:
        """`stranger`: asked for because it wrote to us, so it may not choose relays on private addresses, unless one of
        ours is on such an address, or we have written to it before. Raises MailUnsent where no relay that answers knows
        the agent, or what they serve is not valid."""
        public_only = stranger and not await self._is_known(to) and not await self._has_private()
        peer = await self._find(to, hints, fresh=fresh, stranger=stranger, public_only=public_only)
        return peer if peer.public_only == public_only else replace(peer, public_only=public_only)

    async def _is_known(self, id: str) -> bool:
        """Whether our own agent, or a person, has written to it or asked for it, also before the last start."""
        with contextlib.suppress(HoldfastError, OSError):
            at = os.stat(self.path)  # here and not in a thread: every message asks
            mark = at.st_ino, at.st_size, at.st_mtime_ns
            if mark != self._kept[0]:
                self._kept = mark, await asyncio.to_thread(find_known, self.path)
            return id in self._kept[1]
        return False

    async def _has_private(self) -> bool:
        """Whether an own relay is on an address of this machine or of a private network."""
        at, hosts, found = self._own
        own = tuple(one.host for one in self.own_relays())
        if own != hosts or time.monotonic() - at >= FRESH_S:
            looked = await is_any_private(own)
            found, at = found if looked is None and own == hosts else bool(looked), time.monotonic()
            self._own = at if looked is not None else at - FRESH_S + UNSURE_S, own, found
        return found

    async def _find(self, to: str, hints: Sequence[str], *, fresh: bool, stranger: bool, public_only: bool) -> Peer:
        name, named = parse_address(to)
        known = self._known.get(name)
        if known is not None and not fresh and time.monotonic() - known.at < FRESH_S and self._stands(known):
            if not stranger and not await self._is_known(known.id):
                with contextlib.suppress(HoldfastError, OSError):  # the next look keeps it
                    await asyncio.to_thread(keep_peer, self.path, known.profile)
            return known
        chosen = (*self._listed(name), *named, *parse_hints(hints))
        relays = {one.key: one for one in (*(public_of(chosen) if public_only else chosen), *self.own_relays())}
        try:
            held = await asyncio.to_thread(find_peer, self.path, name)
            asked, now = list(relays.values()), self.now()
            found = await find_agent(name, asked, now=now, port=self.port, known=held, public_only=public_only)
            if found.profile.record.id != name:  # a handle: what was seen is kept by id
                held = await asyncio.to_thread(find_peer, self.path, found.profile.record.id)
                check_not_older(found.profile, held)
            await asyncio.to_thread(keep_peer, self.path, found.profile, found.forks, stranger=stranger)
        except BadInput:
            raise
        except (HoldfastError, OSError) as error:
            if known is not None and not fresh and self._stands(known):
                return known  # no relay answers: what was known still stands
            raise MailUnsent(f"{name} cannot be found: {error}") from error
        return self._keep(name, found)

    def known_id(self, to: str) -> str:
        """The agent of this address, as it was found last; "" where it was not asked for."""
        known = self._known.get(id_in(to))
        return "" if known is None else known.id

    def known_log(self, id: AgentId, position: LogPosition) -> KeyLog | None:
        """The log of a sender, if it was asked for lately and can judge keys of this position."""
        known = self._known.get(id)
        if known is None or known.log.position < position or time.monotonic() - known.at >= FRESH_S:
            return None
        return known.log if self._stands(known) else None

    async def log_of(self, id: AgentId, position: LogPosition, hints: Sequence[str]) -> KeyLog:
        """The key log of a sender, if it is to judge keys of this position. Raises MailUnsent."""
        known = self._known.get(id)
        fresh = known is None or known.log.position < position
        return (await self.find(id, hints=hints, fresh=fresh, stranger=True)).log

    def moved(self, peer: Peer, line: str) -> Peer | None:
        """The peer with the newer profile that a relay gave; None where it proves nothing new."""
        try:
            signed = parse_profile(line.encode())
        except HoldfastError:
            return None
        new = replace(peer, profile=signed, at=time.monotonic())
        is_newer = signed.record.rank > peer.profile.record.rank and is_signed_by(signed, peer.log, self.port)
        if signed.record.id != peer.id or not is_newer or not self._stands(new) or find_bad_url(signed.record):
            return None
        self._known[peer.id] = replace(new, public_only=False)
        return new

    def forget(self, peer: Peer) -> None:
        """Ask again next time."""
        for name in [name for name, one in self._known.items() if one.id == peer.id]:
            self._known[name] = Peer(profile=peer.profile, log=peer.log, at=time.monotonic() - FRESH_S)

    def _listed(self, name: str) -> tuple[WitnessRelay, ...]:
        known = self._known.get(name)
        if known is not None:
            return known.relays
        held = find_peer(self.path, name)
        return () if held is None else tuple(addresses_of(held.record))

    def _stands(self, peer: Peer) -> bool:
        return profile_stands(peer.profile.record, peer.log, now=self.now())

    def _keep(self, name: str, found: FoundAgent) -> Peer:
        peer = Peer(profile=found.profile, log=found.log)
        for one in {name, peer.id}:
            keep_newest(self._known, one, peer, most=KNOWN_MAX)
        return peer


def parse_hints(hints: Sequence[str]) -> list[WitnessRelay]:
    """Those that are addresses of relays."""
    found: list[WitnessRelay] = []
    for one in hints[:HINTS_MAX]:
        try:
            found.append(parse_relay_address(one))
        except HoldfastError:
            continue  # a hint of a stranger
    return found
