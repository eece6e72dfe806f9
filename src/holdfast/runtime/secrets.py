"""Secrets in the runtime: pinned when a step is planned, resolved when it is sent, swapped back.

True at all times: no value of a known secret is in a record, an inbox item or a notice, and the task's code sees what
is recorded. Three moments make it so:

* **Plan.** The arguments are recorded as they are, with handles. For each handle that the tool may use there, the step
  records the version that is active now; the fingerprint covers both. A handle that is not set, one that the tool may
  not use, and an argument that holds a value itself end the run before anything is planned: the task is parked with the
  reason, because code that could catch it would take another way once the secret is set.
* **Send.** After the start is durable, the handles are replaced in the copy that the tool gets. The recorded version is
  sent for as long as it is kept. A step of which nothing can have left takes the active version instead; one that may
  have been sent is not sent again with another value, which may be another request: it is looked up, or parked.
* **Record.** Every body that a writer writes passes `entry`, results already before their size is checked. The view is
  folded from what is written, so a replay sees what the first run saw.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, cast

import msgspec

from holdfast.core.effect import CLASSES
from holdfast.core.notices import Notice
from holdfast.core.ports import SecretStore
from holdfast.core.rest import NeedsPerson, Suspended
from holdfast.core.secret_handles import Matcher, find_whole, handle, names_in, register, resolved
from holdfast.core.step import Event
from holdfast.core.values import Json, canonical
from holdfast.errors import NotSent, SecretInInput, SecretNotFound
from holdfast.journal.contract import Change
from holdfast.journal.records import Body, NewRecord, StepView

if TYPE_CHECKING:
    from holdfast.runtime.tool.tool import Tool

Pins = dict[str, int]  # name of a secret -> version that the step was planned with

GONE = (
    "may it be sent with another secret? The version that the step recorded is no longer kept, and may have been sent"
)
NOT_SET = "which secret is meant? The secret that the step recorded is no longer set"

UNDECLARED = "what is to be sent? The tool no longer declares the secret that the step recorded"

_PLANS = frozenset((Event.PLAN, Event.RESTORE))


class Secrets:
    """What one process knows of a store: `active` is False while nothing is set."""

    __slots__ = ("__weakref__", "_matcher", "active", "store")

    def __init__(self, store: SecretStore) -> None:
        self.store = store
        self._matcher = Matcher(store.known())
        self.active = bool(self._matcher)
        register(self)

    def __repr__(self) -> str:
        return "Secrets(...)"

    def refresh(self) -> None:
        """Take in what another process has changed."""
        if self.store.refresh():
            self._matcher = Matcher(self.store.known())
            self.active = bool(self._matcher)

    def get_value(self, name: str) -> str:
        """The active value, for what the runtime itself sends. Raises SecretNotFound."""
        self.refresh()
        version = self.store.find_current(name)
        value = None if version is None else self.store.find_value(name, version)
        if value is None:
            raise SecretNotFound(name)
        return value

    def fill(self, tool: Tool[..., Any], args: dict[str, Any]) -> dict[str, Any]:
        """The arguments with the active values, for a call of which nothing is recorded. Raises SecretNotFound."""
        return _filled(tool, args, {name: self.get_value(name) for name in _declared(tool, args)})

    # swapping

    def text(self, text: str) -> str:
        return self._matcher.text(text) if self.active else text

    def split(self, text: str) -> tuple[str, str]:
        """Of a text that is still coming: what can be shown of it, swapped, and what has to wait."""
        return self._matcher.split(text) if self.active else (text, "")

    def value(self, value: Json) -> Json:
        return self._matcher.value(value) if self.active else value

    def body(self, body: Body) -> Body:
        return cast(Body, self._matcher.value(body))

    def entry(self, entry: NewRecord) -> NewRecord:
        """The record as it may be written. Arguments were checked when the step was planned."""
        if not _PLANS.isdisjoint(entry.events):
            return entry
        body = self._matcher.value(entry.body)
        return entry if body is entry.body else msgspec.structs.replace(entry, body=body)

    def notice(self, notice: Notice) -> Notice:
        if not self.active:
            return notice
        text, notice_id = self.text(notice.text), self.text(notice.notice_id)
        return msgspec.structs.replace(notice, text=text, notice_id=notice_id)

    def change(self, change: Change | None) -> Change | None:
        if change is None or change.notice is None:
            return change
        return msgspec.structs.replace(change, notice=self.notice(change.notice))

    def check_input(self, value: Json, *, what: str) -> None:
        """Raises SecretInInput where a value would be written down."""
        self.refresh()
        found = self._matcher.find(value) if self.active else None
        if found is not None:
            raise SecretInInput(what=what, handle=found)

    # planning

    def pin(self, tool: Tool[..., Any], ordinal: str, args: Mapping[str, Any]) -> Pins:
        """The versions that a new step will send. Suspended where it cannot be planned."""
        self.refresh()
        where = f"secret: step {ordinal}: {tool.name}"
        found = self._matcher.find(dict(args)) if self.active else None
        if found is not None:
            raise Suspended(NeedsPerson(f"{where}: an argument contains the value of {found}; pass {found} itself"))
        pins: Pins = {}
        for parameter, value in args.items():
            for name in _asked(tool, parameter, value):
                if not _may_use(tool, parameter, name):
                    why = f"{where}: its argument {parameter} may not use {handle(name)}; "
                    raise Suspended(NeedsPerson(why + f'declare it with secrets={{"{parameter}": "{name}"}}'))
                version = self.store.find_current(name)
                if version is None:
                    why = f"{where}: {handle(name)} is not set; `holdfast secret set {name}`, then retry the task"
                    raise Suspended(NeedsPerson(why))
                pins[name] = version
        return pins

    # sending

    def missing(self, tool: Tool[..., Any], step: StepView) -> str:
        """Why the step must not be sent now, as a question; empty where it may."""
        pins = pins_of(step)
        if not pins:
            return ""
        if {name for name, _ in pins} - _declared(tool, cast("dict[str, Any]", step.args)):
            return UNDECLARED
        self.refresh()
        fresh = _is_fresh(step, under_way=0)
        if all(self._find(name, version, fresh=fresh) is not None for name, version in pins):
            return ""
        return NOT_SET if fresh else GONE

    def resolve(
        self, tool: Tool[..., Any], step: StepView, args: dict[str, Any], *, lookup: bool = False
    ) -> dict[str, Any]:
        """The arguments as they are sent. Raises NotSent where a value is missing."""
        pins = pins_of(step)
        if not pins:
            return args
        self.refresh()
        fresh = lookup or _is_fresh(step, under_way=1)
        values: dict[str, str] = {}
        for name, version in pins:
            value = self._find(name, version, fresh=fresh)
            if value is None:
                raise NotSent(f"Holdfast no longer keeps version {version} of {handle(name)}")
            values[name] = value
        return _filled(tool, args, values)

    def _find(self, name: str, version: int, *, fresh: bool) -> str | None:
        value = self.store.find_value(name, version)
        if value is None and fresh:
            current = self.store.find_current(name)
            value = None if current is None else self.store.find_value(name, current)
        return value


class NoStore:
    """core.ports.SecretStore with nothing in it."""

    def refresh(self) -> bool:
        return False

    def find_current(self, name: str) -> int | None:
        return None

    def find_value(self, name: str, version: int) -> str | None:
        return None

    def known(self) -> Iterable[tuple[str, str]]:
        return ()


NO_SECRETS = Secrets(NoStore())


def pins_of(step: StepView) -> list[tuple[str, int]]:
    return list((step.planned.secrets or {}).items())


def pinned_fingerprint(mark: bytes, pins: object) -> bytes:
    """The fingerprint of a call with its versions; itself where it has none."""
    if not pins:
        return mark
    return hashlib.blake2b(canonical(pins), key=mark, digest_size=len(mark)).digest()


def _asked(tool: Tool[..., Any], parameter: str, value: object) -> Iterable[str]:
    """The names that this argument asks for. Where the tool declares nothing, a handle inside a text is text like any
    other: results and replies hold handles too. One that is the whole argument is a mistake worth a question."""
    if parameter in tool.secrets:
        return names_in(value)
    whole = find_whole(value)
    return () if whole is None else (whole,)


def _may_use(tool: Tool[..., Any], parameter: str, name: str) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in tool.secrets.get(parameter, ()))


def _is_fresh(step: StepView, *, under_way: int) -> bool:
    """Whether no attempt, but for the one under way, can have been sent."""
    if CLASSES[step.letter].changes_nothing:
        return True
    return step.step is None or step.step.maybe_sent <= under_way


def _filled(tool: Tool[..., Any], args: dict[str, Any], values: Mapping[str, str]) -> dict[str, Any]:
    if left := values.keys() - _declared(tool, args):
        raise NotSent(f"{tool.name} no longer declares {handle(min(left))}")
    filled = dict(args)
    for parameter in tool.secrets:
        if parameter in filled:
            allowed = {name: v for name, v in values.items() if _may_use(tool, parameter, name)}
            filled[parameter] = resolved(filled[parameter], allowed)
    return filled


def _declared(tool: Tool[..., Any], args: Mapping[str, Any]) -> set[str]:
    """Names that an argument may use now; the code may have changed since the step was planned."""
    return {
        name for parameter in tool.secrets for name in names_in(args.get(parameter)) if _may_use(tool, parameter, name)
    }
