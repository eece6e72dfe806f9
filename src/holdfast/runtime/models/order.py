"""Who may speak after whom: system first, every call answered once before anybody else speaks.

Messages are taken one by one, so that a talk of thousands is checked once and not at every turn.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from holdfast.errors import BadInput

Object = Mapping[str, object]  # a JSON object


class Order:
    """The order of the messages so far. `open_calls` are the refs without a result yet."""

    __slots__ = ("_count", "_seen", "_talking", "open_calls")

    def __init__(self) -> None:
        self.open_calls: dict[str, None] = {}  # in their order
        self._seen: set[str] = set()
        self._count = 0
        self._talking = False

    def take(self, message: Object) -> None:
        """Take one more checked message. Raises BadInput where nobody may say that now."""
        place, role = f"messages[{self._count}]", message["role"]
        if role == "system" and self._talking:
            raise BadInput(f"{place}: system messages come before all others")
        if not self._talking and role in ("assistant", "tool"):
            raise BadInput(f"{place}: the user speaks first")
        if self.open_calls and role != "tool":
            raise BadInput(f"{place}: call {next(iter(self.open_calls))!r} has no result before it")
        for part in cast("list[Object]", message["parts"]):
            self._take_part(part, place)
        self._talking = self._talking or role != "system"
        self._count += 1

    def copy(self) -> Order:
        other = Order()
        other.open_calls, other._seen = dict(self.open_calls), set(self._seen)
        other._count, other._talking = self._count, self._talking
        return other

    def check_end(self) -> None:
        """Raise BadInput where a model cannot be asked now."""
        if self.open_calls:
            raise BadInput(f"call {next(iter(self.open_calls))!r} has no result: the last message cannot leave it so")
        if not self._talking:
            raise BadInput("messages: nobody but the system speaks")

    def _take_part(self, part: Object, place: str) -> None:
        ref = str(part.get("ref"))
        if part["type"] == "tool_call":
            if ref in self._seen:
                raise BadInput(f"{place}: ref {ref!r} is used twice")
            self._seen.add(ref)
            self.open_calls[ref] = None
        elif part["type"] == "tool_result":
            if ref not in self.open_calls:
                raise BadInput(f"{place}: result {ref!r} answers no open call")
            del self.open_calls[ref]
