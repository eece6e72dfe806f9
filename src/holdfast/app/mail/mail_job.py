"""The worker's job that takes the agent's mail in: in one process of a folder, on one host of a shared journal.

A lock file says which process of a folder it is; hosts that share a journal take turns in it. Two at once would do no
harm, because the journal has each message once; they would only ask the relays twice.

After a restore the relays are asked for all held mail again. Whether that is due says a small file in the instance
folder, which is never backed up: it names the journal's incarnation, and a restore makes a new one. For a day it is
asked for at every start, because a relay may have been away the first time.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import socket
import time
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, cast

import msgspec

from holdfast.app.binder import open_secrets
from holdfast.app.mail.agent_post import AgentPost
from holdfast.app.mail.held_mail import Received, secured_up_to
from holdfast.app.mail.intake import Intake
from holdfast.app.mail.mail_link import has_relays
from holdfast.app.mail.profile_job import is_profile_due, renew_profile
from holdfast.app.mail.resend import Resender
from holdfast.backup.chain.heads import HeadFile
from holdfast.backup.places.backup_places import states_of
from holdfast.backup.places.places import read_places
from holdfast.core.clock import SystemClock, SystemEntropy
from holdfast.core.waiting import running_beside
from holdfast.errors import HoldfastError
from holdfast.host.machine import host_id
from holdfast.host.private_files import ensure_private_folder, open_private, read_private, write_atomically
from holdfast.journal.bind import journal_at
from holdfast.journal.contract import Journal
from holdfast.journal.durability import Kept
from holdfast.layout.agent_home import AgentHome, find_home

if TYPE_CHECKING:
    from holdfast.app.worker import JobContext

FILE, LOCK, TURN = "mail.json", "mail.lock", "mail"
TURN_S, EXTEND_S = 60.0, 15.0
LOOK_EVERY_S = 30.0  # for relays, where there are none; for the turn, where another has it
AGAIN_S, AGAIN_S_MAX = 1.0, 60.0
REWIND_FOR_S = 86_400


class _State(msgspec.Struct, frozen=True, kw_only=True):
    incarnation: int
    since: int  # unix seconds: when this host first took mail in under it


async def keep_mail(context: JobContext) -> None:
    """Takes mail in for as long as the worker serves."""
    again_s = AGAIN_S
    while True:
        pause_s = LOOK_EVERY_S
        try:
            home = find_home(context.address.folder)
            if home is None or not isinstance(context.post, AgentPost):
                return
            if await asyncio.to_thread(has_relays, home):
                await _publish_when_due(home, context)
                async with _my_turn(home) as mine:
                    if mine:
                        await _take_in(home, context, context.post)
        except Exception as error:  # noqa: BLE001 - the next round asks the relays again
            context.log.event("mail-failed", error=_told(error))
            if isinstance(context.post, AgentPost):
                await context.post.renew()
            pause_s, again_s = again_s, min(again_s * 2, AGAIN_S_MAX)
        await asyncio.sleep(pause_s)


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

    intake = Intake(
        journal=context.journal,
        mailbox=await post.mailbox(),
        post=post,
        k_effect=context.keys.k_effect,
        salt=await asyncio.to_thread(admin.task_salt) or b"",
        newest_record=newest,
        secured_now=secured_now,
        log=context.log,
        secrets=open_secrets(home.journal, keys=context.keys, clock=clock, entropy=entropy),
        thread_wait_s=home.settings.mail.thread_wait_s,
    )
    rewind = is_rewind_due(home.instance, context.journal.incarnation, now=int(time.time()))
    context.log.event("mail-open", rewind=rewind)
    async with running_beside(Resender(journal=context.journal, post=post, log=context.log).run()):
        await intake.run(rewind=rewind)


async def find_secured(home: AgentHome, journal: Journal, received: Sequence[Received], *, now_s: float) -> int:
    """The mark up to which mail is safe here now."""
    kept = (await journal.find_durability()).kept
    covered = await asyncio.to_thread(find_covered, home, shared=journal.capabilities.hosts)
    return secured_up_to(
        received, now_s=now_s, watch_s=home.settings.identity.watch_s, on_standby=kept is Kept.STANDBY, covered=covered
    )


def find_covered(home: AgentHome, *, shared: bool = False) -> int | None:
    """The number of the last record in the newest verified snapshot; 0 where there is none; None where there is no
    place. Where several hosts share the journal a record may get a lower number than one that was committed before it:
    there only a snapshot with a higher number than the mark was made after the commit."""
    if not read_places(home.places_file):
        return None
    verified = {state.verified for state in states_of(home).read().values() if state.verified}
    heads = (one.record for one in HeadFile(home.heads_file).read().heads)
    newest = max((one for one in heads if one.archive in verified), key=lambda one: one.rank, default=None)
    if newest is None or newest.journal is None:
        return 0
    return newest.journal.sequence - shared


def is_rewind_due(instance: Path, incarnation: int, *, now: int) -> bool:
    """Whether held mail is to be asked for again; remembers that this incarnation was seen."""
    path = instance / FILE
    try:
        known = msgspec.json.decode(read_private(path, 1_000), type=_State)
    except (FileNotFoundError, msgspec.DecodeError, HoldfastError):
        known = None
    if known is not None and known.incarnation == incarnation:
        return now - known.since < REWIND_FOR_S
    ensure_private_folder(instance)
    write_atomically(path, msgspec.json.encode(_State(incarnation=incarnation, since=now)))
    return True


# whose turn it is


@asynccontextmanager
async def _my_turn(home: AgentHome) -> AsyncGenerator[bool]:
    """Whether this process takes the mail in; kept while the block runs."""
    with _locked_now(home.instance) as mine:
        shared = journal_at(home.journal).find_shared() if mine else None
        if shared is None:
            yield mine
            return
        who = f"{socket.gethostname()}:{home.folder}"

        def take() -> str:
            return shared.take_turn(TURN, holder=host_id(home.instance), who=who, for_s=TURN_S)

        async def extend() -> None:
            while True:
                await asyncio.sleep(EXTEND_S)
                with contextlib.suppress(HoldfastError):  # the server is away for a moment
                    await asyncio.to_thread(take)

        if await asyncio.to_thread(take):
            yield False
            return
        try:
            async with running_beside(extend()):
                yield True
        finally:
            with contextlib.suppress(HoldfastError):  # it ends by itself
                await asyncio.to_thread(shared.give_turn, TURN, holder=host_id(home.instance))


@contextlib.contextmanager
def _locked_now(instance: Path) -> Generator[bool]:
    """True where no other process of this folder has the lock; it ends with the process."""
    ensure_private_folder(instance)
    fd = open_private(instance / LOCK, os.O_RDWR | os.O_CREAT)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True
    finally:
        os.close(fd)
