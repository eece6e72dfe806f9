"""Finding another agent: by its handle at a relay, or by its id, and how much of the answer is confirmed.

No relay is believed alone. The profile proves itself against the key log; the log is asked for at every relay that the
profile names and at those that the asker knows, and a relay that shows less or something else is named. What was seen
of an agent before is kept in `peers.json` beside the asker's own files: an older profile is refused, whichever relay
serves it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from holdfast.core.decoding import decode_json
from holdfast.errors import (
    BadInput,
    BadRecord,
    HoldfastError,
    LogDamaged,
    LogMissing,
    RelayRefused,
    RelayUnreachable,
    RelayUntrusted,
)
from holdfast.host.private_files import read_private, write_atomically
from holdfast.host.public_names import is_private_host
from holdfast.identity.files.own_log import home_lock
from holdfast.identity.log.log_state import KeyLog
from holdfast.identity.records.ed25519 import Signatures
from holdfast.identity.records.encodings import AgentId, parse_agent_id
from holdfast.identity.records.signed import Refusal, Signed
from holdfast.identity.statements.statements import Profile, find_bad_url, parse_profile, profile_stands
from holdfast.identity.witness.observe import OPERATORS_MIN, Observation, SourceAnswer, merge_copies, observe
from holdfast.identity.witness.relay_link import RelayLink, ask_all, with_url
from holdfast.identity.witness.witness import LogCopy
from holdfast.identity.witness.witness_relay import RelayWitness
from holdfast.layout.witness_address import WitnessRelay
from holdfast.relay.client.profile import addresses_of, check_handle, is_signed_by, newest_of, operator_of

FORMAT = 1
ASKED_S = 5.0  # a relay that is silent holds up a look for so long, twice: for the profile and for the log
PEERS_MAX, PEERS_BYTES_MAX = 4_096, 8 * 1024 * 1024  # agents, and bytes of all lines
FORKS_MAX = 8  # lines for one agent
FILE_BYTES_MAX = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundAgent:
    profile: Signed[Profile]
    log: KeyLog
    seen: Observation
    operators: tuple[str, ...]  # whose relays showed the log
    silent: dict[str, str]
    forks: tuple[bytes, ...]  # two profiles of one rank: the agent runs twice, or its keys were stolen
    moved: bool  # a relay that was asked is no longer one of the agent's

    @property
    def confirmed(self) -> bool:
        """Whether relays of different operators show the same log."""
        return len(self.operators) >= OPERATORS_MIN and not self.seen.forked


class Peers(msgspec.Struct, frozen=True, kw_only=True):
    """The newest profile seen of each agent, as it was signed; which of them the own agent has written to or asked for;
    and profiles of one rank that contradict each other."""

    format: int = FORMAT
    profiles: dict[str, str] = {}
    forks: dict[str, list[str]] = {}
    known: list[str] = []


async def find_agent(
    name: str,
    relays: Sequence[WitnessRelay],
    *,
    now: int,
    port: Signatures,
    known: Signed[Profile] | None = None,
    public_only: bool = False,
) -> FoundAgent:
    """The agent of a handle (`ada@relay.example`) or an id, as these relays and its own show it. `public_only`: a
    stranger chose where it is to be found. Raises LogMissing: no relay knows it; RelayRefused: what they serve is not
    valid, or older than what was `known`; RelayUnreachable, or RelayUntrusted where another server answers in a relay's
    name."""
    found, failed = await _profiles(name, relays, port)
    silent = {url: str(error) for url, error in failed.items()}
    if not found:
        untrusted = next((one for one in failed.values() if isinstance(one, RelayUntrusted)), None)
        if untrusted is not None:
            raise untrusted
        why = "; ".join(with_url(url, text) for url, text in silent.items())
        if why:
            raise RelayUnreachable(f"no relay that answered knows {name} ({why})")
        raise LogMissing(f"no relay knows {name}", hint="ask another relay: `holdfast relay find NAME --relay ADDRESS`")
    first = next(iter(found.values()))
    if any(one.record.id != first.record.id for one in found.values()):
        raise BadInput(
            f"the relays name different agents for {name}",
            hint="ask one relay with `holdfast relay find NAME --relay ADDRESS`, and use the id that it shows",
        )
    newest = newest_of(found.values()) or first
    named = addresses_of(newest.record)
    if public_only:
        named = public_of(named)
    elif not any(is_private_host(one.host) for one in relays):  # its owner may be a stranger: see sender_logs.py
        named = [one for one in named if not is_private_host(one.host)]
    sources = dict.fromkeys((*relays, *named))  # no key has signed for what `named` says yet: it replaces no address
    copies = await ask_all(
        sources, lambda link: RelayWitness(link).fetch(newest.record.id), port=port, within_s=ASKED_S
    )
    answers = [
        SourceAnswer(source=one.url, operator=_operator(one, newest.record), copy=copy)
        for one, copy in copies.items()
        if isinstance(copy, LogCopy)
    ]
    silent |= {
        one.url: str(copy or "it does not know this agent")
        for one, copy in copies.items()
        if not isinstance(copy, LogCopy)
    }
    log = _joined(answers, newest.record.id, port)
    seen = observe(answers, id=newest.record.id, port=port, known=log)
    if isinstance(seen, Refusal):
        raise RelayRefused(f"{name}: {seen.message}")
    valid = _valid(found, seen.log, now=now, port=port)
    best = valid[-1]
    check_not_older(best, known)
    return FoundAgent(
        profile=best,
        log=seen.log,
        seen=seen,
        operators=tuple(dict.fromkeys(one.operator for one in answers if one.source not in seen.unreadable)),
        silent=silent,
        forks=_forks(valid, known),
        moved=any(
            one.url not in {relay.url for relay in addresses_of(best.record)} for one in relays if one.url in found
        ),
    )


def public_of(relays: Iterable[WitnessRelay]) -> list[WitnessRelay]:
    """Those that a stranger may name; what their names stand for is looked at when a connection is made."""
    return [replace(one, public_only=True) for one in relays if not is_private_host(one.host)]


def find_peer(path: Path, id: str) -> Signed[Profile] | None:
    """The newest profile of this agent that was seen from here."""
    line = _read(path).profiles.get(id)
    return None if line is None else parse_profile(line.encode())


def find_known(path: Path) -> frozenset[str]:
    """The agents that were no strangers when they were kept."""
    return frozenset(_read(path).known)


def keep_peer(path: Path, signed: Signed[Profile], forks: Sequence[bytes] = (), *, stranger: bool = False) -> None:
    """Remember the profile, if it is newer, and what contradicts it; one process at a time. The first ones in the file
    leave when there are too many. Agents that this one writes to come last; a stranger, who only wrote to it, comes
    first: so strangers push out nobody else."""
    id_ = signed.record.id
    with home_lock(path.parent):
        before = _read(path)
        profiles, kept, known = dict(before.profiles), dict(before.forks), dict.fromkeys(before.known)
        held = profiles.get(id_)
        if held is None or parse_profile(held.encode()).record.rank < signed.record.rank:
            profiles[id_] = signed.line().decode()
        if stranger and held is None:
            profiles = {id_: profiles.pop(id_)} | profiles
        elif not stranger:
            profiles[id_] = profiles.pop(id_)
            known[id_] = None
        if forks:
            kept[id_] = list(dict.fromkeys((*kept.get(id_, ()), *(one.decode() for one in forks))))[:FORKS_MAX]
        sizes = {one: len(line) + sum(map(len, kept.get(one, ()))) for one, line in profiles.items()}
        size = sum(sizes.values())
        while len(profiles) > PEERS_MAX or size > PEERS_BYTES_MAX:
            first = next(iter(profiles))
            size -= sizes[first]
            del profiles[first]
        after = Peers(
            profiles=profiles,
            forks={one: lines for one, lines in kept.items() if one in profiles},
            known=[one for one in known if one in profiles],
        )
        if after != before or list(after.profiles) != list(before.profiles):
            write_atomically(path, msgspec.json.encode(after) + b"\n")


async def _profiles(
    name: str, relays: Sequence[WitnessRelay], port: Signatures
) -> tuple[dict[str, Signed[Profile]], dict[str, HoldfastError | OSError]]:
    """By url what the relays hold, and why others say nothing."""
    handle, at, host = name.partition("@")
    if at:
        check_handle(handle)
        if not host:
            raise BadInput(f"{name!r} does not name a relay", hint="write a handle as NAME@HOST")
    asked = [one for one in relays if not at or one.host == host]
    if at and not asked:
        raise BadInput(
            f"the key of the relay {host} is not known here",
            hint=f"`holdfast relay find {name} --relay https://{host}#z6Mk...` asks it; then use the id that it shows",
        )
    id_: AgentId | None = None
    if not at:
        try:
            id_ = parse_agent_id(name)
        except BadRecord as error:
            raise BadInput(f"{name!r} is neither a handle (NAME@RELAY) nor an id: {error.message}") from None

    async def ask(link: RelayLink) -> Signed[Profile] | None:
        raw = await (link.find_handle(handle) if id_ is None else link.find_profile(id_))
        signed = None if raw is None else parse_profile(raw)
        if signed is not None and (url := find_bad_url(signed.record)):
            raise BadRecord(f"the profile that it holds names {url!r}, which is not the address of a relay")
        return signed

    answers = await ask_all(asked, ask, port=port, within_s=ASKED_S)
    found = {one.url: answer for one, answer in answers.items() if isinstance(answer, Signed)}
    return found, {one.url: answer for one, answer in answers.items() if isinstance(answer, HoldfastError | OSError)}


def _joined(answers: Sequence[SourceAnswer], id: AgentId, port: Signatures) -> KeyLog | None:
    """The log that one operator's relays show: `observe` refuses a first sight of one operator alone, and a person who
    looks gets a warning instead."""
    operators = {one.operator for one in answers}
    return (
        merge_copies(None, [one.copy for one in answers], id=id, port=port) if len(operators) < OPERATORS_MIN else None
    )


def _operator(relay: WitnessRelay, profile: Profile) -> str:
    named = next((one.domain for one in profile.relays if one.wit == relay.key), "")
    return named or operator_of(relay.host)


def _valid(found: dict[str, Signed[Profile]], log: KeyLog, *, now: int, port: Signatures) -> list[Signed[Profile]]:
    """Those that the agent's keys signed and that still stand, the newest last. Raises RelayRefused: none."""
    valid = [one for one in found.values() if is_signed_by(one, log, port) and profile_stands(one.record, log, now=now)]
    if not valid:
        expired = all(one.record.exp <= now for one in found.values())
        why = "it has expired" if expired else "the agent's keys did not sign it, or newer ones have replaced them"
        raise RelayRefused(
            f"no profile that the relays hold is valid: {why}",
            hint="the agent's worker publishes a new one; if it runs, ask again later",
        )
    return sorted({one.digest: one for one in valid}.values(), key=lambda one: one.record.rank)


def _forks(valid: Sequence[Signed[Profile]], known: Signed[Profile] | None) -> tuple[bytes, ...]:
    """The lines of two profiles that have the newest rank and say different things."""
    best = valid[-1]
    others = [*valid[:-1], *(() if known is None else (known,))]
    twins = [one for one in others if one.record.rank == best.record.rank and one.digest != best.digest]
    return tuple(one.line() for one in (*twins, best)) if twins else ()


def _words(profile: Signed[Profile]) -> str:
    return "{}.{}, version {}".format(*profile.record.rank)


def check_not_older(best: Signed[Profile], known: Signed[Profile] | None) -> None:
    """Raises RelayRefused."""
    if known is not None and best.record.rank < known.record.rank:
        raise RelayRefused(
            f"the relays serve an older profile ({_words(best)}) than was seen before ({_words(known)})",
            hint="they are behind, or were put back to an older day: ask other relays, or ask again later",
        )


def _read(path: Path) -> Peers:
    with contextlib.suppress(FileNotFoundError):
        try:
            return decode_json(read_private(path, FILE_BYTES_MAX), Peers)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
            raise LogDamaged(f"{path} is malformed: {error}", hint="remove it: it is written again") from None
    return Peers()
