"""What is shown while a reply comes, with handles for known secrets.

Pieces are cut anywhere, also inside a value that a model echoes; so the end of what has come is
held back while it may be the beginning of one, and follows with the next piece or at the end.
What is shown is provisional and for a person's eyes; a screen that fails is no reason to lose the
reply.
"""

from __future__ import annotations

from holdfast.runtime.models.port import Restarted, Show, Shown, TextDelta
from holdfast.runtime.secrets import Secrets


class Showing:
    """Passes on the pieces of one reply, over as many attempts as it takes."""

    __slots__ = ("_held", "_secrets", "_show", "_shown")

    def __init__(self, show: Show, secrets: Secrets) -> None:
        self._show: Show | None = show
        self._secrets = secrets
        self._held = ""
        self._shown = False  # something that is void if another attempt begins

    def restart(self, failed: str) -> None:
        """Another attempt begins."""
        self._held = ""
        if self._shown:
            self._pass_on(Restarted(failed=failed))
        self._shown = False

    def piece(self, shown: Shown) -> None:
        if not isinstance(shown, TextDelta):
            self._held, self._shown = "", False
            self._pass_on(shown)
            return
        text, self._held = self._secrets.split(self._held + shown.text)
        self._text(text)

    def end(self) -> None:
        """The reply is whole."""
        text, self._held = self._secrets.text(self._held), ""
        self._text(text)

    def _text(self, text: str) -> None:
        if text:
            self._shown = True
            self._pass_on(TextDelta(text=text))

    def _pass_on(self, shown: Shown) -> None:
        if self._show is None:
            return
        try:
            self._show(shown)
        except Exception:  # noqa: BLE001 - the user's own
            self._show = None
