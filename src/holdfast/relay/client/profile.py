"""The agent's own profile: where it is to be reached, signed, published at all its relays, never rolled back.

The newest profile that counts is the truth; `profile.json` in the agent's folder and identity.json repeat it. A change
and the daily renewal are both: take the newest of what is here and what the relays hold, change it, raise the version,
sign, keep it here, and only then send it. So a kill leaves a profile that the next run sends again, a restored folder
continues from what the relays hold, and no version is signed twice by one folder.

Whose content is continued: that of the newest profile which is still valid. After a theft or a recovery no profile of
the thief's time is, so what he wrote into it is not signed again; then only what this folder itself kept counts.

The time at which a profile ends is the same for a whole day, counted from an hour of the agent's own. So hosts that
share an agent and renew at the same time sign the same bytes, and not all agents of the world renew at midnight.
"""

from __future__ import annotations

import contextlib
import hashlib
import ipaddress
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

import msgspec

from holdfast.core.mail import ECHO_CHARS_MAX
from holdfast.errors import BadInput, BadRecord, LogDamaged, RelayRefused
from holdfast.host.private_files import read_private, write_atomically
from holdfast.identity.files.public_file import change_identity
from holdfast.identity.log.log_state import KeyLog
from holdfast.identity.records.canonical import LINE_BYTES_MAX
from holdfast.identity.records.ed25519 import Signatures
from holdfast.identity.records.encodings import AgentId, digest_of
from holdfast.identity.records.signed import Family, Refusal, Signed
from holdfast.identity.speaker.speaker import Speaker
from holdfast.identity.statements.certificate import find_fault_by_log
from holdfast.identity.statements.statements import (
    EncryptionKey,
    Profile,
    Relay,
    find_bad_url,
    parse_profile,
    profile_stands,
)
from holdfast.identity.vault.mail_keys import are_due, published
from holdfast.identity.witness.relay_link import RelayLink, ask_all, open_link
from holdfast.identity.witness.witness_relay import bring_log, join_lines
from holdfast.layout.agent_home import AgentHome
from holdfast.layout.relay_url import parse_relay_url
from holdfast.layout.witness_address import WitnessRelay, parse_relay_address, relays_of
from holdfast.relay.protocol.calls import HANDLE_FORM, HANDLES_MAX

DAY_S = 86_400
LIFE_DAYS = 30
LEFT_MAX = 8
PUT_S = 60.0  # for all calls to one relay: the profile, and the records of the log that it lacks
ECHO = "echo"  # in the policy

Policy = tuple[tuple[str, str | int | bool], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileContent:
    """What a profile says, apart from who signed which version when."""

    relays: tuple[Relay, ...] = ()
    handles: tuple[str, ...] = ()
    enc: tuple[EncryptionKey, ...] = ()
    policy: Policy = ()
    left: tuple[str, ...] = ()  # addresses with keys, so that they get later profiles too

    @classmethod
    def of(cls, profile: Profile) -> ProfileContent:
        return cls(
            relays=profile.relays, handles=profile.handles, enc=profile.enc, policy=profile.policy, left=profile.left
        )


Change = Callable[[ProfileContent], ProfileContent]


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedProfile:
    """What counts now, and what each relay said: empty where it holds this profile."""

    signed: Signed[Profile] | None
    said: dict[str, str] = field(default_factory=dict[str, str])
    foreign: bool = False  # the newest one was not made by this folder: by another host, or by a thief
    forks: dict[str, str] = field(default_factory=dict[str, str])  # relays with evidence, by url: its digest


# decisions


def ends_at(id: AgentId, now: int) -> int:
    """When a profile that is made now ends."""
    hour = int.from_bytes(hashlib.sha256(id.encode()).digest()[:4], "big") % DAY_S
    return ((now - hour) // DAY_S + LIFE_DAYS + 1) * DAY_S + hour


def is_due(held: Signed[Profile], log: KeyLog, *, now: int, copied: int | None) -> bool:
    """Whether it must be made again: see `is_old`, or it should name newer mail keys. `copied`: see `are_due`."""
    enc = held.record.enc
    return is_old(held, log, now=now) or (bool(enc) and are_due(enc, now=now, copied=copied))


def is_old(held: Signed[Profile], log: KeyLog, *, now: int) -> bool:
    """Whether it must be signed again although it says what it should: other keys speak now, or a day is over."""
    return held.record.position != log.position or held.record.exp < ends_at(log.id, now)


def is_signed_by(signed: Signed[Profile], log: KeyLog, port: Signatures) -> bool:
    """Whether the keys that the log names at the profile's position signed it."""
    return find_fault_by_log(signed, Family.PROF, log, port) is None


def newest_of(found: Iterable[Signed[Profile]]) -> Signed[Profile] | None:
    return max(found, key=lambda one: one.record.rank, default=None)


def check_handle(name: str) -> None:
    """Raises BadInput for a name that no relay takes."""
    if not re.fullmatch(HANDLE_FORM, name, re.ASCII):
        raise BadInput(
            f"{name!r} cannot be a handle",
            hint="use 1 to 64 of a-z, 0-9, dot, hyphen and _, with a letter or digit at both ends",
        )


def operator_of(host: str) -> str:
    """Who probably runs it: the last two names of the host. A person can say otherwise."""
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        return ".".join(host.split(".")[-2:])


def address_of(relay: Relay) -> WitnessRelay:
    """Raises BadInput for what cannot be the address of a relay: a signature does not make it one."""
    return WitnessRelay(parse_relay_url(relay.url), relay.wit)


def addresses_of(profile: Profile) -> list[WitnessRelay]:
    """Of its relays that have one, the preferred ones first."""
    found: list[WitnessRelay] = []
    for one in sorted(profile.relays, key=lambda one: one.prio):
        with contextlib.suppress(BadInput):  # it was kept by a version that did not check
            found.append(address_of(one))
    return found


def with_relay(content: ProfileContent, relay: Relay, handle: str = "") -> ProfileContent:
    """The relay is added, or its entry replaced; it is no longer one that was left. One url has one key: where it has a
    new one, nothing answers for the old one any more."""
    others = tuple(one for one in content.relays if one.wit != relay.wit and one.url != relay.url)
    handles = tuple(dict.fromkeys((*content.handles, *((handle,) if handle else ()))))
    left = tuple(
        one for one in content.left if relay.wit != one.partition("#")[2] and relay.url != one.partition("#")[0]
    )
    return replace(content, relays=(*others, relay), handles=handles, left=left)


def without_relay(content: ProfileContent, relay: Relay) -> ProfileContent:
    """The relay is left: it answers with this profile from now on. Its handles go with it, if no other relay of the
    agent has its host: a handle names the host alone."""
    host = address_of(relay).host
    others = tuple(one for one in content.relays if one.wit != relay.wit)
    lost = host not in {address_of(one).host for one in others}
    return replace(
        content,
        relays=others,
        handles=tuple(one for one in content.handles if not lost or one.partition("@")[2] != host),
        left=(*content.left, str(address_of(relay)))[-LEFT_MAX:],
    )


def echo_in(profile: Profile) -> str:
    """What its agent asks to be told in messages that are planned from now on (docs/decisions/0116)."""
    said = dict(profile.policy).get(ECHO, "")
    return said if isinstance(said, str) and len(said) <= ECHO_CHARS_MAX else ""


def with_echo(content: ProfileContent, echo: str) -> ProfileContent:
    others = (one for one in content.policy if one[0] != ECHO)
    return replace(content, policy=tuple(sorted((*others, (ECHO, echo)))))


# the folder


_parsed = lru_cache(maxsize=256)(parse_profile)  # every message that is sent asks for it


def find_own_profile(home: AgentHome) -> Signed[Profile] | None:
    """The newest that this folder has kept. Raises LogDamaged."""
    try:
        raw = read_private(home.profile_file, LINE_BYTES_MAX + 2)
    except FileNotFoundError:
        return None
    try:
        return _parsed(raw.removesuffix(b"\n"))
    except BadRecord as error:
        raise LogDamaged(
            f"{home.profile_file}: {error.message}", hint="remove the file: the agent's relays hold the profile"
        ) from None


def own_relays(home: AgentHome) -> tuple[WitnessRelay, ...]:
    """The relays of the agent: those of its profile, and those among its witnesses."""
    held = find_own_profile(home)
    named = () if held is None else addresses_of(held.record)
    return tuple({one.key: one for one in (*relays_of(home.witnesses), *named)}.values())


def _keep(home: AgentHome, signed: Signed[Profile]) -> None:
    write_atomically(home.profile_file, signed.line() + b"\n")
    relays = tuple(str(address_of(one)) for one in signed.record.relays)
    change_identity(
        home.identity_file, lambda one: msgspec.structs.replace(one, relays=relays, handles=signed.record.handles)
    )


# the relays


async def publish_profile(
    home: AgentHome,
    speaker: Speaker,
    *,
    now: int,
    port: Signatures,
    change: Change | None = None,
    more: Sequence[WitnessRelay] = (),
) -> PublishedProfile:
    """The newest profile at all relays of the agent: changed, renewed where it is due, or as it is. `more` are relays
    that a change adds; the log is brought to them first. One act at a time in a folder: the caller holds its lock.
    Raises LogDamaged, and what the speaker raises; a relay that does not answer is named in the result."""
    log = speaker.log()
    local = find_own_profile(home)
    known = (*own_relays(home), *more)
    held = await _held_at(known, log, port)
    newest = newest_of((*held, *(() if local is None else (local,))))
    standing = newest if newest is not None and profile_stands(newest.record, log, now=now) else local
    # One that earlier keys have signed, before a recovery from words alone, is outranked: it is not taken over.
    mine = local is not None and newest is not None and newest.digest == local.digest
    foreign = newest is not None and standing is newest and not mine and bool(held)
    content = _first_content(home) if standing is None else ProfileContent.of(standing.record)
    if change is not None:
        content = change(content)
    content = replace(content, enc=published(speaker.mail_keys(), now=now) or content.enc)
    if not content.relays and not content.left:
        return PublishedProfile(signed=None)
    same = standing is newest and standing is not None and content == ProfileContent.of(standing.record)
    if same and standing is not None and not is_old(standing, log, now=now):
        signed = standing
    else:
        ver = 1 + max((one.record.ver for one in (newest, local) if one is not None), default=0)
        signed = speaker.profile(
            ver=ver,
            life_s=ends_at(log.id, now) - now,
            relays=content.relays,
            handles=content.handles,
            enc=content.enc,
            policy=content.policy,
            left=content.left,
        )
    if local is None or local.digest != signed.digest:
        _keep(home, signed)
    said = await ask_all(_to_tell(content, more), lambda link: _put(link, signed, log), port=port, within_s=PUT_S)
    forks = await find_forks(tuple(map(address_of, content.relays)), log.id, port=port)
    words = {one.url: str(answer).removeprefix(f"{one.url}: ") for one, answer in said.items()}
    return PublishedProfile(signed=signed, said=words, foreign=foreign, forks=forks)


async def register(
    home: AgentHome,
    speaker: Speaker,
    relays: Sequence[WitnessRelay],
    *,
    now: int,
    port: Signatures,
    handle: str = "",
    operator: str = "",
    instead_of: Relay | None = None,
) -> PublishedProfile:
    """Register at all of them, and publish. An invite that does not count, a relay that is full or does not answer, and
    a handle that is taken are refused before anything is signed. The relay that they replace is left: it forwards.
    Raises BadInput, RelayNotAdmitted, RelayRefused, RelayUnreachable, RelayUntrusted, RelayBusy."""
    if handle:
        check_handle(handle)
    log = speaker.log()
    entries: list[tuple[Relay, str]] = []
    for one in relays:
        link = open_link(one, port=port)
        about = await link.describe()
        await bring_log(link, log)
        if handle and about.name != one.host:
            raise RelayRefused(
                f"{one.url}: its handles end in @{about.name}, and others look for them by the host of its address",
                hint="register without --handle; its operator sets `url` in relay.toml to the address that agents use",
            )
        name = f"{handle}@{about.name}" if handle else ""
        taken = await link.find_handle(handle) if handle else None
        if taken is not None and f'"id":"{log.id}"'.encode() not in taken:
            raise RelayRefused(f"{one.url}: another agent has the handle {name}", hint="choose another --handle")
        prio = 0 if instead_of is None else instead_of.prio
        entry = Relay(url=one.url, wit=link.key, prio=prio, domain=operator or operator_of(one.host))
        entries.append((entry, name))

    def change(content: ProfileContent) -> ProfileContent:
        if instead_of is not None:
            content = without_relay(content, instead_of)
        for entry, name in entries:
            content = with_relay(content, entry, name)
            held = [one for one in content.handles if name and one.endswith(f"@{address_of(entry).host}")]
            if len(held) > HANDLES_MAX:
                raise RelayRefused(
                    f"{entry.url}: an agent has at most {HANDLES_MAX} handles at a relay: {', '.join(held[:-1])}",
                    hint="use one of these; `holdfast relay remove` gives up all of them",
                )
        return content

    return await publish_profile(home, speaker, now=now, port=port, change=change, more=relays)


async def find_lacking(home: AgentHome, *, port: Signatures) -> list[str]:
    """The urls of relays that answer, and hold an older profile than this folder, or none: they were away."""
    own = find_own_profile(home)
    if own is None:
        return []

    async def lacks(link: RelayLink) -> bool:
        raw = await link.find_profile(own.record.id)
        return raw is None or parse_profile(raw).record.rank < own.record.rank

    found = await ask_all(addresses_of(own.record), lacks, port=port)
    return [one.url for one, answer in found.items() if answer is True]


async def find_forks(relays: Sequence[WitnessRelay], id: AgentId, *, port: Signatures) -> dict[str, str]:
    """The relays that hold statements of this agent which contradict each other, by url; the digest of the lines."""
    found = await ask_all(relays, lambda link: link.find_evidence(id), port=port)
    return {one.url: digest_of(join_lines(lines)) for one, lines in found.items() if isinstance(lines, tuple) and lines}


async def _held_at(relays: Sequence[WitnessRelay], log: KeyLog, port: Signatures) -> list[Signed[Profile]]:
    """What the relays hold, if the agent's keys signed it and each address in it can be one: a thief of the keys may
    have signed another."""

    async def ask(link: RelayLink) -> Signed[Profile] | None:
        raw = await link.find_profile(log.id)
        return None if raw is None else parse_profile(raw)

    found = (await ask_all(relays, ask, port=port)).values()
    signed = [one for one in found if isinstance(one, Signed) and is_signed_by(one, log, port)]
    return [one for one in signed if not find_bad_url(one.record)]


async def _put(link: RelayLink, signed: Signed[Profile], log: KeyLog) -> str:
    """Empty where the relay holds the profile now, else why not."""
    answer = await link.put_profile(log.id, signed.line())
    if isinstance(answer, Refusal):
        # It may lack records of the log: the agent, or its newest keys.
        await bring_log(link, log)
        answer = await link.put_profile(log.id, signed.line())
    return f"{answer.reason}: {answer.message}" if isinstance(answer, Refusal) else ""


def _first_content(home: AgentHome) -> ProfileContent:
    """An agent whose witnesses are relays is to be found there."""
    relays = tuple(
        Relay(url=one.url, wit=open_link(one).key, prio=0, domain=operator_of(one.host))
        for one in relays_of(home.witnesses)
    )
    return ProfileContent(relays=relays)


def _to_tell(content: ProfileContent, more: Sequence[WitnessRelay]) -> list[WitnessRelay]:
    """The relays of the profile, with the invites that were given, and those that were left: they forward."""
    invited = {one.key: one for one in more}
    named = [*map(address_of, content.relays), *(parse_relay_address(one) for one in content.left if "#" in one)]
    return [invited.get(one.key, one) for one in dict.fromkeys(named)]
