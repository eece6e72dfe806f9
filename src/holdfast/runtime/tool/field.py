"""What is said of one argument beyond its type: `Annotated[int, holdfast.Field(minimum=1)]`."""

from __future__ import annotations

import math
from dataclasses import dataclass

from holdfast.errors import Misuse

_WORDS = {
    "minimum": "minimum",
    "maximum": "maximum",
    "above": "exclusiveMinimum",
    "below": "exclusiveMaximum",
    "multiple_of": "multipleOf",
    "min_length": "minLength",
    "max_length": "maxLength",
    "min_items": "minItems",
    "max_items": "maxItems",
}
# Which JSON types a limit means anything for.
MEANT_FOR: dict[str, frozenset[str]] = {
    **dict.fromkeys(
        ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"), frozenset(("integer", "number"))
    ),
    **dict.fromkeys(("minLength", "maxLength"), frozenset(("string",))),
    **dict.fromkeys(("minItems", "maxItems"), frozenset(("array",))),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """A description and limits of an argument or of a key of a TypedDict.

    Args:
        description: told to the model; before what the docstring says.
        minimum: of a number, itself allowed; `above` is not.
        maximum: of a number, itself allowed; `below` is not.
        multiple_of: a number above 0.
        min_length: of text, in characters.
        min_items: of a list.
    """

    description: str = ""
    minimum: float | None = None
    maximum: float | None = None
    above: float | None = None
    below: float | None = None
    multiple_of: float | None = None
    min_length: int | None = None
    max_length: int | None = None
    min_items: int | None = None
    max_items: int | None = None

    def __post_init__(self) -> None:
        if type(self.description) is not str:
            raise Misuse("Field: the description is text")
        for name in _WORDS:
            self._check(name, getattr(self, name))

    def _check(self, name: str, limit: object) -> None:
        if limit is None:
            return
        whole = name.startswith(("min_", "max_"))
        if type(limit) is not int and (whole or type(limit) is not float):
            raise Misuse(f"Field: {name} is a {'whole ' * whole}number, not {limit!r}")
        if not math.isfinite(limit):
            raise Misuse(f"Field: {name} is a finite number")
        if limit < 0 and whole:
            raise Misuse(f"Field: {name} is not below 0")
        if name == "multiple_of" and limit <= 0:
            raise Misuse("Field: multiple_of is above 0")

    def words(self) -> dict[str, object]:
        """Its limits in the words of JSON Schema."""
        return {word: limit for name, word in _WORDS.items() if (limit := getattr(self, name)) is not None}
