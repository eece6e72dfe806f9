"""`holdfast relay add`, `remove`, `list`, `find` and `doctor`: the relays of an agent."""

from __future__ import annotations

import argparse
import asyncio
import os
import time
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from typing import Any, cast

from holdfast.app.mail.shared_keys import mail_speaker
from holdfast.backup.chain.sources import leave_newest_head
from holdfast.cli.command import acting_home, home_of
from holdfast.cli.doctor import EXIT_CLEAN, EXIT_PROBLEMS, print_finding
from holdfast.cli.input.agent_places import witnesses_of
from holdfast.cli.screen.screen import finish, print_fields, print_json, print_table, talk
from holdfast.core.clock import iso
from holdfast.errors import EXIT_JOURNAL, BadInput, NotAnAgent, RelayRefused
from holdfast.identity.acts.log_act import act_lock
from holdfast.identity.records.ed25519 import Sodium
from holdfast.identity.records.signed import Signed
from holdfast.identity.statements.statements import Profile, Relay
from holdfast.identity.witness.relay_link import with_url
from holdfast.layout.agent_home import AgentHome, home_folder, load_home
from holdfast.layout.moved import check_not_moved
from holdfast.layout.witness_address import WitnessRelay, relays_of
from holdfast.relay.client.find import find_agent, find_peer, keep_peer
from holdfast.relay.client.profile import (
    PublishedProfile,
    address_of,
    check_handle,
    find_own_profile,
    own_relays,
    publish_profile,
    register,
    without_relay,
)
from holdfast.relay.client.status import RelayStatus, look_at_relays

NO_RELAYS = "the agent has no relays: `holdfast relay add ADDRESS` adds one"


def run_add(args: argparse.Namespace) -> int:
    home = acting_home(args)
    check_not_moved(home.instance)
    relay = _relay(args.address, args.invite)
    gone = _listed(home, args.instead_of) if args.instead_of else None
    if args.handle is not None:
        check_handle(args.handle)
    if gone is not None and address_of(gone) == WitnessRelay(relay.url, relay.key):
        raise BadInput("--instead-of names the same relay as ADDRESS", hint="name the relay that the agent leaves")
    before = find_own_profile(home)
    done = registered(home, [relay], handle=args.handle or "", operator=args.operator, instead_of=gone)
    why = done.said.get(relay.url, "")
    if why:
        raise RelayRefused(
            f"{with_url(relay.url, why)}; the agent's new profile names it all the same",
            hint=f"run the command again later; or leave the relay: `holdfast relay remove {relay.url}`",
        )
    moved = [one.url for one in _relays_in(before) if one.wit == relay.key and one.url != relay.url]
    if moved and gone is None:
        talk(f"{moved[0]} had the same key: it is the same relay, and the agent uses it at {relay.url} from now on")
    left = "" if gone is None or gone.url == relay.url else f"; left: {gone.url}{_forwards(done, gone)}"
    _say_lost_handles(before, done)
    _say_foreign(done)
    return _published(args, done, f"added: {relay.url}{left}")


def _relays_in(profile: Signed[Profile] | None) -> tuple[Relay, ...]:
    return () if profile is None else profile.record.relays


def _say_lost_handles(before: Signed[Profile] | None, done: PublishedProfile) -> None:
    held = () if before is None else before.record.handles
    lost = [] if done.signed is None else [one for one in held if one not in done.signed.record.handles]
    if lost:
        again = "`holdfast relay add ADDRESS --handle NAME` gives the agent another name"
        talk(f"warning: given up with the relay: {', '.join(lost)}; {again}")


def _say_foreign(done: PublishedProfile) -> None:
    if done.foreign:
        talk(
            "warning: the relays held a newer profile, which was not signed in this folder; the change was made to "
            "that one. If no other host of the agent signed it, its keys are stolen: `holdfast identity evict`"
        )


def registered(
    home: AgentHome,
    relays: Sequence[WitnessRelay],
    *,
    handle: str = "",
    operator: str = "",
    instead_of: Relay | None = None,
) -> PublishedProfile:
    """The agent is registered at these relays, and its profile names them."""
    with act_lock(home.folder):
        speaker, now = mail_speaker(home), int(time.time())

        async def act() -> PublishedProfile:
            done = await register(
                home, speaker, relays, now=now, port=Sodium(), handle=handle, operator=operator, instead_of=instead_of
            )
            for trouble in await leave_newest_head(home, speaker.log(), relays):
                talk(f"warning: {trouble}; the next backup brings it")
            return done

        return asyncio.run(act())


def run_remove(args: argparse.Namespace) -> int:
    home = acting_home(args)
    check_not_moved(home.instance)
    gone, before = _listed(home, args.relay), find_own_profile(home)
    with act_lock(home.folder):
        change = partial(without_relay, relay=gone)
        done = asyncio.run(
            publish_profile(home, mail_speaker(home), now=int(time.time()), port=Sodium(), change=change)
        )
    _say_lost_handles(before, done)
    _say_foreign(done)
    if any(one.key == gone.wit for one in relays_of(home.witnesses)):
        talk("it is still a witness of the key log: `holdfast identity rotate --witness ...` names others")
    return _published(args, done, f"removed: {gone.url}{_forwards(done, gone)}")


def _forwards(done: PublishedProfile, gone: Relay) -> str:
    return "" if done.said.get(gone.url) else ", which answers with the new profile for 90 days"


def _listed(home: AgentHome, name: str) -> Relay:
    """The relay of the agent's profile with this host, url or address. Raises BadInput."""
    named = [
        one
        for one in _relays_in(find_own_profile(home))
        if name in (str(address_of(one)), one.url, address_of(one).host)
    ]
    if len(named) > 1:
        urls = ", ".join(one.url for one in named)
        raise BadInput(
            f"{name!r} names {len(named)} of the agent's relays: {urls}",
            hint="give the url or the whole address of one",
        )
    if not named:
        raise BadInput(
            f"{name!r} is not one of the agent's relays", hint="`holdfast relay list` shows them; give the url"
        )
    return named[0]


def _published(args: argparse.Namespace, done: PublishedProfile, text: str) -> int:
    for url, why in done.said.items():
        if why:
            talk(f"warning: {url} does not have the new profile yet: {why}")
    record = None if done.signed is None else done.signed.record
    fields = {
        "relays": [] if record is None else [str(address_of(one)) for one in record.relays],
        "handles": [] if record is None else list(record.handles),
        "version": 0 if record is None else record.ver,
        "expires": "" if record is None else iso(record.exp * 1000),
        "failed": {url: why for url, why in done.said.items() if why},
    }
    return finish(args, fields, text)


def run_list(args: argparse.Namespace) -> int:
    from holdfast.app.mail.mail_room import find_mail_trouble

    home = home_of(args)
    found = asyncio.run(look_at_relays(home, port=Sodium()))
    troubles = find_mail_trouble(home.instance)
    if args.json:
        print_json({"relays": [_shape(one, troubles.get(one.address.url, "")) for one in found]})
        return 0
    rows = [
        (
            one.address.url,
            one.operator,
            "yes" if one.witness else "no",
            " ".join(one.handles),
            _told(one, troubles.get(one.address.url, "")),
        )
        for one in found
    ]
    print_table(("relay", "operator", "witness", "handles", "profile"), rows, empty=NO_RELAYS)
    return 0


def _told(one: RelayStatus, trouble: str) -> str:
    if one.proof or one.error or trouble:
        error = one.error.removeprefix(f"{one.address.url}: ")
        return "contradicts itself" if one.proof else error or f"gives the worker no mail: {trouble}"
    return "newest" if one.newest else "newer" if one.newer else "none" if one.profile is None else "older"


def _shape(one: RelayStatus, trouble: str) -> dict[str, Any]:  # Any: JSON
    return {
        "address": str(one.address),
        "operator": one.operator,
        "witness": one.witness,
        "listed": one.listed,
        "handles": list(one.handles),
        "error": one.error,
        "mail_trouble": trouble,
        "log": one.log,
        "profile": None if one.profile is None else list(one.profile),
        "newest": one.newest,
        "evidence": one.evidence,
        "proof": "" if one.proof is None else str(one.proof.path),
        "head": one.head,
    }


def run_find(args: argparse.Namespace) -> int:
    home = _own_home(args)
    relays = relays_of(witnesses_of(args.relay)) + (own_relays(home) if home else ())
    if not relays:
        raise BadInput("no relay was named", hint="give --relay https://relay.example#z6Mk...")
    port, now = Sodium(), int(time.time())
    found = asyncio.run(find_agent(args.name, relays, now=now, port=port))
    id_ = found.profile.record.id
    if home is not None:
        known = find_peer(home.peers_file, id_)
        found = asyncio.run(find_agent(args.name, relays, now=now, port=port, known=known))
        keep_peer(home.peers_file, found.profile, found.forks)
    profile = found.profile.record
    fields: dict[str, Any] = {
        "id": id_,
        "handles": list(profile.handles),
        "relays": [str(address_of(one)) for one in profile.relays],
        "version": list(profile.rank),
        "expires": iso(profile.exp * 1000),
        "standing": found.log.standing.value,
        "moved": found.moved,
        "confirmed": found.confirmed,
        "operators": list(found.operators),
        "behind": list(found.seen.behind),
        "forked": list(found.seen.forked),
        "contradicted": len(found.forks),
        "silent": found.silent,
    }
    if args.json:
        print_json(fields)
        return 0
    shown = {key: value if isinstance(value, str) else _text(value) for key, value in fields.items()}
    shown["version"] = ", ".join(map(str, profile.rank))
    print_fields([(key, text) for key, text in shown.items() if text])
    if found.forks:
        talk("warning: its keys signed two profiles of one version: it runs twice, or its keys were stolen")
    if not found.confirmed:
        talk("warning: relays of one operator alone show this: no one else confirms it")
    return 0


def _text(value: object) -> str:
    if isinstance(value, dict):
        return "\n".join(with_url(name, why) for name, why in cast("dict[str, str]", value).items())
    if isinstance(value, list):
        return "\n".join(map(str, value))  # pyright: ignore[reportUnknownArgumentType]
    return "yes" if value is True else "no" if value is False else str(value)


def _own_home(args: argparse.Namespace) -> AgentHome | None:
    """The asker's own agent, if it has one: what it saw before counts."""
    folder = home_folder(args.home)
    try:
        return load_home(folder) if args.home or os.path.lexists(folder / "holdfast.toml") else None
    except NotAnAgent:
        return None


def run_doctor(args: argparse.Namespace) -> int:
    from holdfast.app.doctor import Level
    from holdfast.app.mail.examine_relays import examine_relays

    home = home_of(args)

    async def look() -> list[Any]:  # Any: findings
        return [one async for one in examine_relays(home)]

    found = asyncio.run(look())
    levels = {one.level for one in found}
    clean = not levels & {Level.WARNING, Level.DAMAGE}
    if args.json:
        print_json({"ok": clean, "findings": [asdict(one) for one in found]})
    else:
        for one in found:
            print_finding(one)
        if not found:
            talk(NO_RELAYS)
    if Level.DAMAGE in levels:
        return EXIT_JOURNAL
    return EXIT_CLEAN if clean else EXIT_PROBLEMS


def _relay(text: str, invites: list[str]) -> WitnessRelay:
    found = relays_of(witnesses_of([text], invites))
    if not found:
        raise BadInput(f"{text!r} is not the address of a relay", hint="write it as https://relay.example#z6Mk...")
    return found[0]
