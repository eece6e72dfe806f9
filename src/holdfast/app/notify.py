"""Notifying a person: a command that gets the notice on standard input, or a webhook; and the dead-man's ping.

Notices come from a process that runs. That it runs at all, another service watches: each scheduled run calls the URL of
`[watch] ping` when it starts, and when it ends with its exit code. If the calls stop, that service raises the alarm.
"""

from __future__ import annotations

import asyncio
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Callable, Sequence
from urllib.parse import urlsplit, urlunsplit

import msgspec

from holdfast.core.effect import Keyed, Read
from holdfast.core.notices import Notice, Notices
from holdfast.errors import BadSettings, HoldfastError
from holdfast.layout.engine_settings import Settings
from holdfast.runtime.http.client import HttpClient

COMMAND_TIMEOUT_S = 30.0
WEBHOOK_TIMEOUT_S = 10.0

_encode = msgspec.json.Encoder().encode


def make_notices(settings: Settings) -> Notices | None:
    if settings.notice_command and settings.notice_webhook:
        raise BadSettings("notices: set a command or a webhook, not both")
    if settings.notice_command:
        return CommandNotices(settings.notice_command)
    if settings.notice_webhook:
        return WebhookNotices(settings.notice_webhook)
    return None


class NotTold(HoldfastError):
    """A notice could not be delivered by the command or webhook of `[notices]`.
    `holdfast doctor` counts the undelivered ones."""

    code = "notice-failed"
    default_hint = "Holdfast tries again; see [notices] in `holdfast explain settings`"


class CommandNotices:
    """Runs a command per notice; exit status 0 means sent."""

    def __init__(self, command: Sequence[str]) -> None:
        self._command = tuple(command)

    async def tell(self, notice: Notice) -> None:
        process = await asyncio.create_subprocess_exec(*self._command, stdin=PIPE, stdout=DEVNULL, stderr=DEVNULL)
        try:
            async with asyncio.timeout(COMMAND_TIMEOUT_S):
                await process.communicate(_encode(notice) + b"\n")
        except TimeoutError:
            raise NotTold(f"the notice command took longer than {COMMAND_TIMEOUT_S:g} s") from None
        finally:
            if process.returncode is None:  # too slow, or this program ends
                process.kill()
                await process.wait()
        if process.returncode != 0:
            raise NotTold(f"the notice command exited with {process.returncode}")


class WebhookNotices:
    """Posts each notice as JSON; the notice id is the Idempotency-Key."""

    def __init__(self, url: str) -> None:
        self._url = url

    async def tell(self, notice: Notice) -> None:
        loop = asyncio.get_running_loop()
        ends = loop.time() + WEBHOOK_TIMEOUT_S
        client = HttpClient(
            effect=Keyed(window_s=86_400, fingerprint="checked", refusals_stored=False),
            effect_key=notice.notice_id,
            task_id=notice.task_id or "-",
            ordinal=notice.ordinal or "-",
            time_left_s=lambda: ends - loop.time(),
        )
        await client.post(self._url, json=msgspec.to_builtins(notice), timeout_s=WEBHOOK_TIMEOUT_S)


PING_TIMEOUT_S = 10.0


def with_pings(url: str, work: Callable[[], int], *, warn: Callable[[str], None]) -> int:
    """Do the work, and call the URL before and after it: `/start`, then the exit code, or `/fail` if the work raised. A
    call that does not get through is a warning, and never changes what becomes of the work."""
    if not url:
        return work()
    end = "fail"
    asyncio.run(_ping(url, "start", warn))
    try:
        code = work()
        end = str(min(code, 255))
        return code
    finally:
        asyncio.run(_ping(url, end, warn))


async def _ping(url: str, end: str, warn: Callable[[str], None]) -> None:
    loop = asyncio.get_running_loop()
    ends = loop.time() + PING_TIMEOUT_S
    client = HttpClient(effect=Read(), effect_key="", task_id="-", ordinal="-", time_left_s=lambda: ends - loop.time())
    parts = urlsplit(url)
    whole = urlunsplit(parts._replace(path=f"{parts.path.rstrip('/')}/{end}"))
    try:
        answer = await client.get(whole, timeout_s=PING_TIMEOUT_S, check=False)
        failed = "" if answer.status < 400 else f"status {answer.status}"
    except Exception as error:  # noqa: BLE001 - whatever the far end does, the run goes on; its URL may be a secret
        failed = type(error).__name__
    if failed:
        warn(f"the ping `{end}` of [watch] did not get through: {failed}")
