"""The worker's job that keeps the agent's profile published: on a change of keys, and every day.

One process of a folder does it at a time (the lock of every act on identity). A relay that does not answer gets it
later: the worker asks every few minutes which of them lacks it. An agent without relays has no profile. A relay that is
gone for long is replaced by a spare one (app/mail/replace_relay.py).

Hosts that share a journal take turns: of two that signed at the same time, each with its own newest mail key, both
would have one version, and that is the proof of a theft.
"""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial

from holdfast.app.mail.replace_relay import ASK_EVERY_S, replace_gone_relays
from holdfast.app.mail.shared_keys import find_copied, mail_speaker
from holdfast.app.mail.since_restore import find_since
from holdfast.app.worker import JobContext
from holdfast.core.notices import relay_contradiction_notice, two_profiles_notice
from holdfast.errors import HoldfastError
from holdfast.host.machine import host_id
from holdfast.identity.acts.log_act import act_lock
from holdfast.identity.files.own_log import find_own_log
from holdfast.identity.records.ed25519 import Sodium
from holdfast.journal.bind import journal_at
from holdfast.journal.contract import Journal
from holdfast.layout.agent_home import AgentHome, find_home
from holdfast.relay.client.chain_check import find_proofs
from holdfast.relay.client.profile import (
    PublishedProfile,
    echo_in,
    find_lacking,
    find_own_profile,
    is_due,
    own_relays,
    publish_profile,
    with_echo,
)

LOOK_EVERY_S = 60.0
TURN, TURN_S, TURN_LOOK_S = "profile", 60.0, 0.2
AGAIN_S = 900.0  # after a relay did not take it


async def keep_published(context: JobContext) -> None:
    """Looks every minute whether the profile is due, which reads two files, and for proofs against relays."""
    again_at = asked_at = 0.0
    stays_due = False  # also after a renewal: its mail key could not be kept
    told: set[str] = set()
    while True:
        try:
            home = find_home(context.address.folder)
            if home is None:
                return
            await tell_of_proofs(home, context.journal, told)
            is_due = await asyncio.to_thread(is_profile_due, home)
            if (is_due and not stays_due) or 0 < again_at < time.monotonic():
                done = await asyncio.to_thread(renew_profile, home)
                failed = {url: why for url, why in done.said.items() if why}
                stays_due = await asyncio.to_thread(is_profile_due, home)
                again_at = time.monotonic() + AGAIN_S if failed or stays_due else 0.0
                context.log.event("profile-published", relays=len(done.said) - len(failed), failed=failed)
                for url, digest in done.forks.items():
                    notice = two_profiles_notice(url, digest, now_ms=context.journal.now_ms())
                    await context.journal.add_notice(notice)
            if time.monotonic() - asked_at >= ASK_EVERY_S:
                asked_at = time.monotonic()
                if not again_at and await find_lacking(home, port=Sodium()):
                    again_at = asked_at
                for one in await replace_gone_relays(home):
                    context.log.event("relay-gone", relay=one.gone, spare=one.spare, trouble=one.trouble)
        except (HoldfastError, OSError) as error:
            context.log.event("profile-failed", error=str(error))
        await asyncio.sleep(LOOK_EVERY_S)


async def tell_of_proofs(home: AgentHome, journal: Journal, told: set[str]) -> None:
    """A notice for each of the agent's relays that contradicts itself; `told`: those that this process has told of."""
    current = {one.key for one in own_relays(home)} - told
    for key, proof in (await asyncio.to_thread(find_proofs, home.relay_proofs)).items():
        if key in current:
            notice = relay_contradiction_notice(proof.url, key, proof.why, str(proof.path), now_ms=journal.now_ms())
            await journal.add_notice(notice)
            told.add(key)


def is_profile_due(home: AgentHome) -> bool:
    log = find_own_log(home.folder, Sodium())
    if log is None or not own_relays(home):
        return False
    held = find_own_profile(home)
    if held is None or is_due(held, log, now=int(time.time()), copied=find_copied(home)):
        return True
    echo = _echo(home)
    return bool(echo) and echo_in(held.record) != echo


def renew_profile(home: AgentHome) -> PublishedProfile:
    """Blocks while another host that shares the journal does it, at most for its turn."""
    with act_lock(home.folder), _turn_of_hosts(home):
        speaker, echo = mail_speaker(home), _echo(home)
        change = partial(with_echo, echo=echo) if echo else None
        return asyncio.run(publish_profile(home, speaker, now=int(time.time()), port=Sodium(), change=change))


def _echo(home: AgentHome) -> str:
    admin = journal_at(home.journal)
    return find_since(home.instance, admin.life()).echo if admin.exists() else ""


@contextmanager
def _turn_of_hosts(home: AgentHome) -> Generator[None]:
    shared = journal_at(home.journal).find_shared()
    if shared is None:
        yield
        return
    holder, who = host_id(home.instance), f"{socket.gethostname()}:{home.folder}"
    until = time.monotonic() + TURN_S
    while shared.take_turn(TURN, holder=holder, who=who, for_s=TURN_S) and time.monotonic() < until:
        time.sleep(TURN_LOOK_S)
    try:
        yield
    finally:
        shared.give_turn(TURN, holder=holder)
