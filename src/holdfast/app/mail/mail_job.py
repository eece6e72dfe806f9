"""The worker's job that takes the agent's mail in: in one process of a folder, on one host of a shared journal.

A lock file says which process of a folder it is; hosts that share a journal take turns in it. Two at once would do no
harm, because the journal has each message once; they would only ask the relays twice.

After a restore the relays are asked for all held mail again. Which ones have done it says a small file in the instance
folder, which is never backed up: it names the journal's incarnation, and a restore makes a new one. A relay that was
away is asked when it is back, however late that is.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, cast

from holdfast.app.binder import open_secrets
from holdfast.app.mail.agent_post import AgentPost
from holdfast.app.mail.held_mail import Received, secured_up_to
from holdfast.app.mail.intake import Intake
from holdfast.app.mail.mail_room import keep_fill, keep_mail_trouble
from holdfast.app.mail.profile_job import is_profile_due, renew_profile
from holdfast.app.mail.resend import Resender
from holdfast.app.mail.since_restore import find_since, keep_rewound, make_echo
from holdfast.backup.chain.heads import HeadFile
from holdfast.backup.places.backup_places import states_of
from holdfast.backup.places.places import read_places
from holdfast.backup.turns import turn_of_hosts
from holdfast.core.clock import SystemClock, SystemEntropy
from holdfast.core.notices import second_mailbox_notice
from holdfast.core.waiting import running_beside
from holdfast.errors import HoldfastError
from holdfast.host.private_files import locked_now
from holdfast.journal.admin import is_suspected
from holdfast.journal.bind import journal_at
from holdfast.journal.contract import Journal
from holdfast.journal.durability import Kept, Life
from holdfast.layout.agent_home import AgentHome, find_home
from holdfast.relay.client.profile import find_own_profile

if TYPE_CHECKING:
    from holdfast.app.worker import JobContext

LOCK, TURN = "mail.lock", "mail"
TURN_S, EXTEND_S = 15.0, 4.0  # a host that died lets go of its turn by itself
TURN_LOOK_S = 4.0  # for the turn, where another has it
LOOK_EVERY_S = 30.0  # for relays, where there are none
AGAIN_S, AGAIN_S_MAX = 1.0, 60.0
ECHO_LOOK_S = 2.0  # whether a word may be asked for


async def keep_mail(context: JobContext) -> None:
    """Takes mail in for as long as the worker serves."""
    again_s = 0.0
    while True:
        pause_s, began_s = LOOK_EVERY_S, time.monotonic()
        try:
            home = find_home(context.address.folder)
            if home is None or not isinstance(context.post, AgentPost):
                return
            held = await asyncio.to_thread(find_own_profile, home)
            if held is not None and (held.record.relays or held.record.left):  # mail may wait where it left
                await _publish_when_due(home, context)
                async with _my_turn(home) as mine:
                    if mine:
                        await _take_in(home, context, context.post)
                    pause_s = TURN_LOOK_S
        except Exception as error:  # noqa: BLE001 - the next round asks the relays again
            context.log.event("mail-failed", error=_told(error))
            if isinstance(context.post, AgentPost):
                await tell_of_instances(context.post, context.journal)
                await context.post.renew()
            pause_s = again_s = next_pause_s(again_s, lasted_s=time.monotonic() - began_s)
        await asyncio.sleep(pause_s)


def next_pause_s(before_s: float, *, lasted_s: float) -> float:
    """How long to wait after a failure: longer each time, but not after mail was taken in for a while."""
    if not before_s or lasted_s > AGAIN_S_MAX:
        return AGAIN_S
    return min(2 * before_s, AGAIN_S_MAX)


async def _publish_when_due(home: AgentHome, context: JobContext) -> None:
    """After a recovery relays do not let the new keys log in before they have seen them; this brings them the log."""
    try:
        if await asyncio.to_thread(is_profile_due, home):
            await asyncio.to_thread(renew_profile, home)
    except (HoldfastError, OSError) as error:  # the job of the profile tries again, and the relays may know the keys
        context.log.event("profile-failed", error=str(error))


def _told(error: BaseException) -> str:
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(map(_told, cast("BaseExceptionGroup[BaseException]", error).exceptions))
    return f"{type(error).__name__}: {error}"


async def _take_in(home: AgentHome, context: JobContext, post: AgentPost) -> None:
    admin, clock, entropy = journal_at(home.journal), SystemClock(), SystemEntropy()

    async def newest() -> int:
        return await asyncio.to_thread(admin.newest_record)

    async def secured_now(received: Sequence[Received], now_s: float) -> int:
        return await find_secured(home, context.journal, received, now_s=now_s)

    life = await asyncio.to_thread(admin.life)
    since = find_since(home.instance, life)
    intake = Intake(
        journal=context.journal,
        submit=context.submit or context.journal.submit,
        mailbox=await post.mailbox(),
        post=post,
        k_effect=context.keys.k_effect,
        salt=await asyncio.to_thread(admin.task_salt) or b"",
        newest_record=newest,
        secured_now=secured_now,
        log=context.log,
        secrets=open_secrets(home.journal, keys=context.keys, clock=clock, entropy=entropy),
        thread_wait_s=home.settings.mail.thread_wait_s,
        rewound=since.rewound,
        on_rewound=partial(keep_rewound, home.instance, life),
        life_of=since.life_of,
        keep_fill=partial(keep_fill, home.instance),
        keep_trouble=partial(keep_mail_trouble, home.instance),
        sent_to=post.sent_to,
        known_id=post.known_id,
    )
    context.log.event("mail-open", rewound=len(intake.rewound))
    async with (
        running_beside(Resender(journal=context.journal, post=post, log=context.log).run()),
        running_beside(_watch_instances(post, context.journal)),
        running_beside(_ask_for_echo(home, context, intake, life)),
    ):
        await intake.run(rewind=True)


async def _ask_for_echo(home: AgentHome, context: JobContext, intake: Intake, life: Life) -> None:
    """Until the agent's profile asks for a word that only new messages can have, if the journal was restored. Hosts
    that share it would each ask for another."""
    if context.journal.capabilities.hosts or not is_suspected(life.restored_ms, now_ms=context.journal.now_ms()):
        return
    while True:
        held = await asyncio.to_thread(find_own_profile, home)
        relays = () if held is None else tuple(one.wit for one in held.record.relays)
        if make_echo(home.instance, life, relays):
            break
        await asyncio.sleep(ECHO_LOOK_S)
    intake.life_of = find_since(home.instance, life).life_of
    await _publish_when_due(home, context)
    context.log.event("mail-new-since-restore")


async def _watch_instances(post: AgentPost, journal: Journal) -> None:
    while True:
        await asyncio.sleep(LOOK_EVERY_S)
        await tell_of_instances(post, journal)


async def tell_of_instances(post: AgentPost, journal: Journal) -> None:
    """A notice for each other instance that takes this agent's mail, or did. Hosts that share a journal are none: they
    take turns, and one whose turn is over may still have asked."""
    if journal.capabilities.hosts:
        return
    with contextlib.suppress(HoldfastError):  # the journal is away for a moment: told with the next look
        for instance, relay in post.other_instances().items():
            await journal.add_notice(second_mailbox_notice(instance, relay, now_ms=journal.now_ms()))


async def find_secured(home: AgentHome, journal: Journal, received: Sequence[Received], *, now_s: float) -> int:
    """The mark up to which mail is safe here now."""
    kept = (await journal.find_durability()).kept
    covered = await asyncio.to_thread(find_covered, home, shared=journal.capabilities.hosts)
    return secured_up_to(
        received, now_s=now_s, watch_s=home.settings.identity.watch_s, on_standby=kept is Kept.STANDBY, covered=covered
    )


def find_covered(home: AgentHome, *, shared: bool = False) -> int | None:
    """The number of the last record in the newest verified snapshot; 0 where there is none; None where there is no
    place. Only a snapshot of this life of the journal counts: a restore goes on from the number of its copy, so an
    earlier life has used the same numbers for other records. Where several hosts share the journal a record may get a
    lower number than one that was committed before it: there only a snapshot with a higher number than the mark was
    made after the commit."""
    if not read_places(home.places_file):
        return None
    verified = {state.verified for state in states_of(home).read().values() if state.verified}
    heads = (one.record for one in HeadFile(home.heads_file).read().heads)
    newest = max((one for one in heads if one.archive in verified), key=lambda one: one.rank, default=None)
    if newest is None or newest.journal is None:
        return 0
    admin = journal_at(home.journal)
    if (newest.journal.id, newest.journal.incarnation) != (admin.peek(), admin.incarnation()):
        return 0
    return newest.journal.sequence - shared


# whose turn it is


@asynccontextmanager
async def _my_turn(home: AgentHome) -> AsyncGenerator[bool]:
    """Whether this process takes the mail in; kept while the block runs."""
    with locked_now(home.instance / LOCK) as mine:
        shared = journal_at(home.journal).find_shared() if mine else None
        if shared is None:
            yield mine
            return
        async with turn_of_hosts(home, shared, TURN, for_s=TURN_S, extend_s=EXTEND_S) as other:
            yield not other
