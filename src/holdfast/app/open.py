"""`holdfast.open`: a journal, and an engine in this process that serves the given tasks.

The engine here never kills its host process. When its lease is lost (a laptop slept, a debugger
held the process) it fences its runs, starts a new session and resumes; docs/explanation/guarantees.md
says what is weaker than in `holdfast worker`.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Protocol, cast, runtime_checkable

from holdfast.app.binder import acting, memory_beside, open_as, open_secrets, scratch_root, watched_files, watching
from holdfast.app.declared import build_of, check_tools, check_windows
from holdfast.app.handoff import kept_handoff, refresh_handoff
from holdfast.app.holdfast import Holdfast
from holdfast.app.instances.shared_roster import AskedJournal, is_asked
from holdfast.app.mail.agent_post import AgentPost, built_in_tasks, posting
from holdfast.app.notify import make_notices
from holdfast.core.clock import Clock, Entropy, SystemClock, SystemEntropy
from holdfast.core.journal_address import JournalAddress
from holdfast.core.mail import Post
from holdfast.core.notices import Notices
from holdfast.core.ports import KeyRing
from holdfast.core.waiting import running_beside
from holdfast.errors import Misuse
from holdfast.host.log import Log
from holdfast.journal.bind import journal_at
from holdfast.journal.builds import NO_BUILD
from holdfast.journal.contract import Journal
from holdfast.layout.engine_settings import Settings, request_scopes
from holdfast.layout.journal_location import Where, journal_address
from holdfast.layout.settings import find_settings
from holdfast.runtime.engine.engine import Engine
from holdfast.runtime.task.mail_task import MAIL_NAME
from holdfast.runtime.task.task import TaskType
from holdfast.runtime.tool.child import in_child
from holdfast.runtime.tool.tool import Tool


@runtime_checkable
class BoundTask(Protocol):
    """A task that can be used by itself where its journal is open: an agent."""

    def bind(self, home: Holdfast) -> None: ...
    def unbind(self, home: Holdfast) -> None: ...


@asynccontextmanager
async def open(  # noqa: A001 - the public name is holdfast.open
    journal: Where,
    *,
    home: str | os.PathLike[str] | None = None,
    tasks: Iterable[TaskType] = (),
    tools: Iterable[Tool[..., Any]] = (),
    settings: Settings | None = None,
    serve: bool = True,
    create: bool = True,
    new_journal: bool = False,
    build: str = "",
    take_over: Iterable[str] = (),
    clock: Clock | None = None,
    entropy: Entropy | None = None,
    log: Log | None = None,
    wrap: Callable[[Journal], Journal] | None = None,
    post: Post | None = None,
) -> AsyncGenerator[Holdfast, None]:
    """Open the journal at this path or url and serve the given tasks until the block is left.

    Args:
        journal: path of the journal file, or `postgresql://USER@HOST/DATABASE`; made, with its keys.json, if there is
            none. A url may not contain a password: use a passfile or a service file.
        home: this host's folder for a journal on a server (keys, settings); default: $HOLDFAST_HOME, else this folder.
        tasks: task functions that this process runs, for new tasks and for tasks of dead processes.
        tools: tools of scopes, so that this process can finish the calls that a dead process left open.
        serve: False: run no tasks; only read, submit and decide.
        new_journal: also make the journal if the keys in its folder serve another one that is missing there.
        build: which build of your code this is; tasks with on_change="pin" finish on the build that began them.
        take_over: builds that are gone for good: this process finishes their tasks with its own code.
        wrap: for tests: puts something around the open journal, such as what `holdfast.testing` counts or kills at.
        post: what sends mail (default: the agent's relays); tests give `holdfast.testing.mail.ScriptedPost`.
    """
    if in_child():
        raise Misuse(
            "this is the process of a blocking tool: it cannot open a journal",
            hint='put the code that starts your program under `if __name__ == "__main__":`',
        )
    tasks, known = list(tasks), list(tools)
    used = check_tools(tasks, known)
    own_build = build_of(tasks, build, takes_over=take_over) if serve else NO_BUILD
    settings = settings or Settings()
    clock = clock or SystemClock()
    entropy = entropy or SystemEntropy()
    address, log = journal_address(journal, home=home), log or Log()
    scopes = request_scopes(settings, beside=find_settings(address))
    notices = make_notices(settings) if serve else None
    files = AsyncExitStack()  # closed while the journal is still open
    async with AsyncExitStack() as stack:
        lease = None
        if serve:
            lease = await stack.enter_async_context(
                acting(address, clock=clock, entropy=entropy, notices=notices, log=log, patient=False)
            )
        opened, keys = await open_as(
            lease,
            address,
            clock=clock,
            entropy=entropy,
            create=create,
            network_fs=settings.allow_network_fs,
            new_journal=new_journal,
        )
        if not serve and is_asked(address):
            opened = cast("Journal", AskedJournal(opened, address, clock=clock))
        if wrap is not None:
            opened = wrap(opened)
        try:
            secrets = open_secrets(address, keys=keys, clock=clock, entropy=entropy)
            memory = None
            if serve:
                for text in await check_windows(used, opened, lease_s=settings.lease_ttl_s):
                    log.event("short-window", text=text)
                    warnings.warn(text, stacklevel=3)
                memory = await files.enter_async_context(memory_beside(address, opened, secrets=secrets, log=log))
                post = post or await stack.enter_async_context(posting(address.folder))
        except BaseException:  # also a cancel: no journal stays open without an owner
            await opened.close()
            raise
        hf = Holdfast(
            journal=opened,
            keys=keys,
            clock=clock,
            entropy=entropy,
            tasks=tasks,
            tools=known,
            settings=settings,
            log=log,
            secrets=secrets,
            memory=memory,
            held=lease,
            task_salt=journal_at(address).task_salt() or b"",
            scopes=scopes,
        )
        engine: Engine | None = None
        if serve:
            scratch = scratch_root(address, folder=settings.scratch_folder, journal_id=opened.journal_id)
            engine = Engine(
                journal=opened,
                keys=keys,
                clock=clock,
                entropy=entropy,
                tasks=[*hf.tasks.values(), *built_in_tasks(post)],
                tools=known,
                settings=settings,
                notices=make_notices(settings),
                log=log,
                secrets=secrets,
                memory=memory,
                post=post,
                scratch_root=scratch,
                right=lease,
                build=own_build,
                files=watched_files(address, scratch=scratch, log=log),
            )
            hf.start(engine)
        bound = [task for task in hf.tasks.values() if isinstance(task, BoundTask)]
        for task in bound:
            task.bind(hf)
        try:
            if engine is None:
                async with watching(lease, opened, log):
                    yield hf
                if opened.commits:  # something was decided or submitted, and perhaps no worker runs
                    await refresh_handoff(address, opened, log=log)
            else:
                async with kept_handoff(address, opened, held=engine.views, ended_here=engine.ended, log=log):
                    async with watching(lease, opened, log), _receiving(hf, address, keys, post, notices, log):
                        yield hf
                    await hf.stop()
        finally:
            for task in bound:
                task.unbind(hf)
            await hf.stop()
            await files.aclose()  # the notes of the last tasks are in the files
            await hf.close()


@asynccontextmanager
async def _receiving(
    hf: Holdfast, address: JournalAddress, keys: KeyRing, post: Post | None, notices: Notices | None, log: Log
) -> AsyncGenerator[None]:
    """While the block runs, the agent's mail is taken in, if there is a handler for it among the tasks."""
    if not isinstance(post, AgentPost) or MAIL_NAME not in hf.tasks:
        yield
        return
    from holdfast.app.mail.mail_job import keep_mail
    from holdfast.app.worker import JobContext

    context = JobContext(address=address, journal=hf.journal, keys=keys, notices=notices, log=log, post=post)
    async with running_beside(keep_mail(context)):
        yield
