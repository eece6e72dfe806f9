"""What `holdfast doctor` finds about the agent's relays."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from holdfast.app.doctor import Finding, damage, note, ok, warning
from holdfast.app.mail.mail_room import FULL_PERCENT, find_fill, find_mail_trouble
from holdfast.app.mail.since_restore import find_since
from holdfast.core.clock import SystemClock
from holdfast.core.notices import MAIL_ROOM_HINT, mail_room_text
from holdfast.errors import BadInput, HoldfastError
from holdfast.identity.records.ed25519 import Sodium
from holdfast.journal.admin import is_suspected
from holdfast.journal.bind import journal_at
from holdfast.layout.agent_home import AgentHome
from holdfast.layout.witness_address import parse_relay_address
from holdfast.relay.client.profile import find_own_profile
from holdfast.relay.client.status import find_stale_profile, look_at_relays, shared_fates

ADD = "`holdfast relay add ADDRESS`"
FOREIGN_HINT = (
    "`holdfast doctor` says whether the keys were replaced; if no host of yours signed it: `holdfast identity evict`"
)


async def examine_relays(home: AgentHome) -> AsyncIterator[Finding]:
    """Findings about the agent's relays."""
    try:
        found = await look_at_relays(home, port=Sodium())
        stale = find_stale_profile(home, port=Sodium())
    except HoldfastError as error:
        yield damage("relay", error.message, error.hint)
        return
    for text in home.settings.mail.spare_relays:
        try:
            parse_relay_address(text)
        except BadInput as error:
            yield warning("relay", f"[mail] spare_relays: {error.message}", error.hint)
    if not found:
        yield note("relay", "the agent has no relays: others cannot reach it", ADD)
    elif find_own_profile(home) is None:
        fix = "a worker publishes it: `holdfast worker APP`"
        yield note("relay", "the agent has published no profile from here yet: others may not find it", fix)
    troubles = find_mail_trouble(home.instance)
    for one in found:
        url = one.address.url
        again = f"`holdfast relay add {one.address}` publishes it again; a worker does so by itself"
        if one.proof is not None:
            text = f"{url} contradicts itself ({one.proof.why}): it lies, or its disk was put back to an older day"
            fix = (
                f"{ADD[:-1]} --instead-of {url}`; show the proof, {one.proof.path}, to its operator, who "
                "must give the relay a new key"
            )
            yield warning("relay", text, fix)
        if one.error:
            yield warning("relay", one.error, f"start it; if it is gone for good: {ADD[:-1]} --instead-of {url}`")
            continue
        if url in troubles and one.proof is None:
            text = f"the worker takes no mail at {url}: {troubles[url]}"
            yield warning(
                "relay",
                text,
                "the worker tries again; if it does not end, check the network and the clock of this machine",
            )
        if one.evidence:
            text = f"{url} holds two profiles or backup heads of one version: this agent runs twice, or keys are stolen"
            yield damage("relay", text, "stop the other copy; if there is none: `holdfast identity evict`")
        if one.newer:
            text = (
                f"{url} holds a newer profile of this agent than this folder: another host signed it, this folder is "
                "an old copy, or the keys are stolen"
            )
            yield warning("relay", text, FOREIGN_HINT)
        elif not one.log:
            yield warning("relay", f"{url} does not hold the newest record of the key log", again)
        elif one.listed and not one.newest:
            yield warning("relay", f"{url} does not hold the newest profile of this agent", again)
        elif not one.evidence and one.proof is None:
            yield ok("relay", f"{url} answers; " + ("it holds the newest profile" if one.newest else "no profile yet"))
    for url, percent in find_fill(home.instance).items():
        if percent >= FULL_PERCENT and url in {one.address.url for one in found}:
            yield warning("relay", mail_room_text(url, percent), MAIL_ROOM_HINT)
    for finding in await asyncio.to_thread(_find_suspected, home):
        yield finding
    if stale:
        fix = "a worker renews it; without one: `holdfast relay add ADDRESS` with the address of any of its relays"
        yield warning("relay", stale, fix)
    for fate in shared_fates(found):
        yield warning(
            "relay",
            f"all {len(found)} relays {fate}: they may fail together",
            f"add a relay of another operator, elsewhere: {ADD}",
        )


def _find_suspected(home: AgentHome) -> list[Finding]:
    """Why new mail still counts as mail that a lost timeline may have handled."""
    admin, held = journal_at(home.journal), find_own_profile(home)
    if held is None or admin.hosts or not admin.exists():
        return []
    life = admin.life()
    since = find_since(home.instance, life)
    if since.echo or not is_suspected(life.restored_ms, now_ms=SystemClock().wall_ms()):
        return []
    text = "since the restore all new mail counts as mail that the lost copy may have handled"
    away = [one.url for one in held.record.relays if one.wit not in since.rewound]
    if not away:
        return [note("relay", text, "run a worker: it asks senders for a mark of what is new")]
    why = f"{text}: this agent has not logged in at {', '.join(away)}"
    return [warning("relay", why, f"run a worker; if a relay is gone for good: {ADD[:-1]} --instead-of {away[0]}`")]
