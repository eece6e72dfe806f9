"""Notifying a person: a command that gets the notice on standard input, or a webhook."""

from __future__ import annotations

import asyncio
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Sequence

import msgspec

from holdfast.core.effect import Keyed
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
