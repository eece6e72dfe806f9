"""Whether anybody is there to do what was asked."""

from __future__ import annotations

from typing import TYPE_CHECKING

from holdfast.cli.screen.screen import talk

if TYPE_CHECKING:
    from holdfast.app.open import Holdfast


async def is_served(hf: Holdfast) -> bool:
    """Whether a living session serves this journal."""
    return any(session.alive for session in await hf.journal.list_sessions())


async def hint_at_workers(hf: Holdfast) -> None:
    if not await is_served(hf):
        talk("no worker serves this journal now; it is kept until one does")
        talk("hint: `holdfast worker APP`")
