"""What goes wrong in a worker inside `holdfast submit --run`, as talk instead of log lines."""

from __future__ import annotations

import io
import json
from collections.abc import Callable

_TOLD = {"trouble": "warning", "session-lost": "warning", "clock-behind": "warning"}


class Troubles(io.StringIO):
    """A stream for runtime.log.Log that passes on what a person should see."""

    def __init__(self, say: Callable[[str], None]) -> None:
        super().__init__()
        self._say = say

    def write(self, text: str, /) -> int:
        fields = json.loads(text)
        event = str(fields.get("event"))
        if event in _TOLD:
            self._say(f"{_TOLD[event]}: {fields.get('error') or event}")
            if fields.get("hint"):
                self._say(f"hint: {fields['hint']}")
        return len(text)
