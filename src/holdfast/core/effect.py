"""The seven effect classes: what a tool promises about repeats, and so what a resumer may do.

A class is a contract with the downstream, not a wish. Nothing here is believed: the numbers (window, delay) are the far
end's documented ones, and a tool that states no class is Unrepeatable: at most once, in doubt a person decides.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from holdfast.errors import Misuse

DELAY_DEFAULT_S = 60.0
DELAY_HTTP_S = 5.0  # `call.http` enforces its own deadline, so a request cannot linger longer
WINDOW_MAX_S = 400 * 86_400.0

Letter = Literal["R", "T", "F", "K", "Q", "I", "N"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """Base of the classes. `max_delay_s`: the longest time a sent request can stay under way."""

    letter: ClassVar[Letter]
    name: ClassVar[str]
    changes_nothing: ClassVar[bool] = False  # nothing outside the journal's own commit
    repeatable: ClassVar[bool] = True  # sending it again does no harm, while its key or fence is known
    merges: ClassVar[bool] = False  # the result may wait for the next step's commit

    max_delay_s: float | None = None

    def __post_init__(self) -> None:
        _check_seconds("max_delay_s", self.max_delay_s, low=0.0, high=WINDOW_MAX_S)

    def delay_s(self, *, http_only: bool) -> float:
        if self.max_delay_s is not None:
            return self.max_delay_s
        return DELAY_HTTP_S if http_only else DELAY_DEFAULT_S


@dataclass(frozen=True, slots=True, kw_only=True)
class Read(Effect):
    """Changes nothing; may run any number of times; the recorded answer is the one used."""

    letter: ClassVar[Letter] = "R"
    name: ClassVar[str] = "Read"
    changes_nothing: ClassVar[bool] = True
    merges: ClassVar[bool] = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Transactional(Effect):
    """Returns statements that the journal applies in the commit that closes the step."""

    letter: ClassVar[Letter] = "T"
    name: ClassVar[str] = "Transactional"
    changes_nothing: ClassVar[bool] = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Fenced(Effect):
    """The downstream refuses lower fences for the same resource, and deduplicates by key."""

    letter: ClassVar[Letter] = "F"
    name: ClassVar[str] = "Fenced"


@dataclass(frozen=True, slots=True, kw_only=True)
class Keyed(Effect):
    """The downstream does one effect per key for `window_s` seconds after the first request.

    `fingerprint`: "checked" if a repeat with another body is an error, "ignored" if the service then
    gives the first answer, not an error. `refusals_stored`: whether the service stores a refusal
    under the key and repeats it. You must give all three, because no default would be safe.
    """

    letter: ClassVar[Letter] = "K"
    name: ClassVar[str] = "Keyed"
    merges: ClassVar[bool] = True

    window_s: float
    fingerprint: Literal["checked", "ignored"]
    refusals_stored: bool
    key_header: str = "Idempotency-Key"

    def __post_init__(self) -> None:
        # Explicit base call: zero-argument super() does not survive slots=True on 3.11.
        Effect.__post_init__(self)
        _check_seconds("window_s", self.window_s, low=1.0, high=WINDOW_MAX_S)
        if self.fingerprint not in ("checked", "ignored"):
            raise Misuse("Keyed: fingerprint must be 'checked' or 'ignored'")


@dataclass(frozen=True, slots=True, kw_only=True)
class Queryable(Effect):
    """The downstream can be asked whether a reference happened; the tool has a `find`.

    `find_returns_result`: the lookup gives the whole result, so the record of a success may wait for the next commit.
    """

    letter: ClassVar[Letter] = "Q"
    name: ClassVar[str] = "Queryable"
    repeatable: ClassVar[bool] = False

    find_returns_result: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Idempotent(Effect):
    """Doing it again leaves the same end state, if nothing else writes that resource meanwhile."""

    letter: ClassVar[Letter] = "I"
    name: ClassVar[str] = "Idempotent"


@dataclass(frozen=True, slots=True, kw_only=True)
class Unrepeatable(Effect):
    """No key, no lookup, no fence. At most once; in doubt a person decides.

    With `policy="at_least_once"` Holdfast sends it again if in doubt, and the result says so.
    """

    letter: ClassVar[Letter] = "N"
    name: ClassVar[str] = "Unrepeatable"
    repeatable: ClassVar[bool] = False

    policy: Literal["at_most_once", "at_least_once"] = "at_most_once"

    def __post_init__(self) -> None:
        Effect.__post_init__(self)
        if self.policy not in ("at_most_once", "at_least_once"):
            raise Misuse("Unrepeatable: policy must be 'at_most_once' or 'at_least_once'")


CLASSES: dict[Letter, type[Effect]] = {
    cls.letter: cls for cls in (Read, Transactional, Fenced, Keyed, Queryable, Idempotent, Unrepeatable)
}


_WRITTEN = {"Keyed": 'holdfast.Keyed(window_s=86_400, fingerprint="checked", refusals_stored=True)'}


def check_effect(effect: object, *, tool: str) -> Effect:
    """The effect class of a tool. Raises Misuse, with what to write, for a class without brackets, a name, anything."""
    if isinstance(effect, Effect):
        return effect
    said = effect.__name__ if isinstance(effect, type) else str(effect)
    names = [one.name for one in CLASSES.values()]
    name = next((one for one in names if one.casefold() == said.strip().casefold()), "")
    given = f"the class {said}" if isinstance(effect, type) else repr(effect)
    raise Misuse(
        f"tool {tool}: effect must be an object of an effect class, not {given}",
        hint=f"write effect={_WRITTEN.get(name, f'holdfast.{name}()')}" if name else f"use one of: {', '.join(names)}",
    )


def _check_seconds(name: str, value: float | None, *, low: float, high: float) -> None:
    if value is not None and not low <= value <= high:
        raise Misuse(f"{name} must be between {low:g} and {high:g} seconds, not {value!r}")
