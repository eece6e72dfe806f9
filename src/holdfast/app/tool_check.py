"""Which class a tool's far end proves by its behaviour: repeats, other bodies, crowds, lookups.

A class is a promise of the far end. A tool that promises what its far end does not keep is worse
than one that promises nothing. `Sandbox.check` sends real requests through the tool to a sandbox;
`judge` says what the answers prove, and is pure.

* Keyed needs all of: a repeat under one key gives the first answer; another key gives another
  answer, so that answers tell effects apart; a crowd under one key gets one answer; another body
  under a used key is refused ("checked") or gets the first answer ("ignored").
* Queryable needs: the lookup finds what was sent and does not find what was not.
* What is not proven is Unrepeatable. A window, a delay and stored refusals cannot be seen from
  outside in a minute: the tool's own statement counts.
"""

from __future__ import annotations

import asyncio
import inspect
import os
from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import Any, Literal, TypeVar, cast

import msgspec

from holdfast.core.effect import Effect, Keyed, Queryable, Unrepeatable
from holdfast.core.ids import task_id_from_bytes
from holdfast.core.values import canonical, checked
from holdfast.errors import Busy, KeyReused, NotSent, Refused, text_of
from holdfast.runtime.tool.tool import Absent, Call, Found, Many, Tool

T = TypeVar("T")
Args = dict[str, Any]  # Any: JSON values of the person who checks
BUSY_TRIES = 20
TEXT_CHARS_MAX = 300


class Kind(StrEnum):
    ANSWER = "answer"
    REFUSED = "refused"
    BUSY = "busy"
    KEY_REUSED = "key-reused"
    FAILED = "failed"


class Outcome(msgspec.Struct, frozen=True):
    """How one request ended. `value`: the canonical answer, or the error text."""

    kind: Kind
    value: bytes = b""

    @property
    def text(self) -> str:
        return self.value.decode(errors="replace")[:TEXT_CHARS_MAX]


class Looked(StrEnum):
    FOUND = "found"
    ABSENT = "absent"
    MANY = "many"
    UNSURE = "unsure"


class Seen(msgspec.Struct, kw_only=True):
    """Everything that was tried; None if it was not."""

    first: Outcome
    again: Outcome
    fresh: Outcome
    crowd: list[Outcome]
    after_crowd: Outcome
    other: Outcome | None = None
    refused: Outcome | None = None
    mended: Outcome | None = None  # good arguments under the key of a refusal
    found: Looked | None = None
    unused: Looked | None = None


class Check(msgspec.Struct, frozen=True):
    """One check: `ok` is None if it was not tried or proves nothing."""

    name: str
    ok: bool | None
    text: str


class Verdict(msgspec.Struct, kw_only=True):
    checks: list[Check]
    proved: Literal["Keyed", "Queryable", "Unrepeatable"]
    fingerprint: Literal["checked", "ignored", ""] = ""
    refusals_stored: bool | None = None
    declared: str = ""
    ok: bool = False  # the declared class promises nothing that was disproved or not proven
    refuted: bool = False  # an answer speaks against the declared class


RANK = {"Unrepeatable": 0, "Queryable": 1, "Keyed": 2}
TRIABLE = (Keyed, Queryable, Unrepeatable)


def judge(seen: Seen, effect: Effect) -> Verdict:
    """What the answers prove."""
    apart = _apart(seen)
    repeat = _repeat(seen)
    if repeat.ok and not apart.ok:
        repeat = Check("repeat", None, "a repeat gives the same answer, which proves nothing here")
    crowd = _crowd(seen)
    body, fingerprint = _body(seen)
    lookup = _lookup(seen)
    stored, refusals = _refusals(seen)
    keyed = all(one.ok for one in (repeat, apart, crowd, body))
    proved = "Keyed" if keyed else "Queryable" if lookup.ok else "Unrepeatable"
    verdict = Verdict(
        checks=[repeat, apart, crowd, body, lookup, refusals],
        proved=proved,
        fingerprint=fingerprint if keyed else "",
        refusals_stored=stored,
        declared=effect.name,
    )
    verdict.ok = RANK[effect.name] <= RANK[proved] and not _contradicts(verdict, effect)
    verdict.refuted = not verdict.ok and not _is_open(verdict, effect)
    return verdict


def _is_open(verdict: Verdict, effect: Effect) -> bool:
    """Whether nothing speaks against Keyed; another body was not tried."""
    tried = {one.name: one.ok for one in verdict.checks}
    agrees = isinstance(effect, Keyed) and verdict.refusals_stored in (None, effect.refusals_stored)
    return agrees and tried["other body"] is None and all(tried[name] for name in ("repeat", "apart", "crowd"))


def _contradicts(verdict: Verdict, effect: Effect) -> bool:
    if not isinstance(effect, Keyed):
        return False
    stored = verdict.refusals_stored
    return verdict.fingerprint != effect.fingerprint or (stored is not None and stored != effect.refusals_stored)


def _repeat(seen: Seen) -> Check:
    same = seen.first.kind is seen.again.kind is Kind.ANSWER and seen.first == seen.again
    text = "gives the first answer" if same else f"ends differently: {_end(seen.again)}"
    return Check("repeat", same, f"a repeat under the same key {text}")


def _apart(seen: Seen) -> Check:
    if seen.fresh.kind is not Kind.ANSWER:
        return Check("apart", False, f"another key gives no answer: {_end(seen.fresh)}")
    if seen.fresh.value != seen.first.value:
        return Check("apart", True, "another key gives another answer")
    text = "answers do not tell effects apart, so an effect that was done twice would look the same"
    return Check("apart", False, f"another key gives the same answer: {text}")


def _crowd(seen: Seen) -> Check:
    ends = [*(one for one in seen.crowd if one.kind not in (Kind.BUSY, Kind.KEY_REUSED)), seen.after_crowd]
    for one in ends:
        if one.kind is not Kind.ANSWER:
            return Check("crowd", False, f"several at the same time under one key: {_end(one)}")
    answers = len({one.value for one in ends})
    said = "one answer" if answers == 1 else f"{answers} different answers"
    return Check("crowd", answers == 1, f"{len(seen.crowd)} at the same time under one key: {said}")


def _body(seen: Seen) -> tuple[Check, Literal["checked", "ignored", ""]]:
    other = seen.other
    if other is None:
        return Check("other body", None, "not tried: give other arguments with --other"), ""
    if other.kind in (Kind.KEY_REUSED, Kind.REFUSED):
        return Check("other body", True, "a used key with another body is refused"), "checked"
    if other == seen.first:
        return Check("other body", True, "a used key with another body gives the first answer"), ("ignored")
    return Check("other body", False, f"a used key with another body is done a second time: {_end(other)}"), ""


def _lookup(seen: Seen) -> Check:
    if seen.found is None or seen.unused is None:
        return Check("lookup", None, "the tool has no lookup")
    good = seen.found in (Looked.FOUND, Looked.MANY) and seen.unused is Looked.ABSENT
    return Check("lookup", good, f"a sent request: {seen.found}; one that was never sent: {seen.unused}")


def _refusals(seen: Seen) -> tuple[bool | None, Check]:
    if seen.refused is None or seen.mended is None:
        return None, Check("refusals", None, "not tried: give refused arguments with --refused")
    if seen.refused.kind is not Kind.REFUSED:
        return None, Check("refusals", None, f"these arguments are not refused: {_end(seen.refused)}")
    stored = seen.mended.kind in (Kind.REFUSED, Kind.KEY_REUSED)
    said = "stored under their key" if stored else "not stored: the key can be used again"
    return stored, Check("refusals", True, f"refusals are {said}")


def _end(outcome: Outcome) -> str:
    return f"{outcome.kind} {outcome.text}".strip()


class Sandbox:
    """Sends through the tool, under our own keys; records nothing."""

    def __init__(self, tool: Tool[..., Any], *, wait_s: float) -> None:
        self._tool = tool
        self._wait_s = wait_s

    async def check(
        self, args: Args, *, other: Args | None, refused: Args | None, at_once: int, say: Callable[[str], None]
    ) -> Seen:
        first_key, fresh_key, crowd_key = _Key(), _Key(), _Key()
        say("sending a request, then the same request again")
        first = await self._patiently(first_key, args)
        again = await self._patiently(first_key, args)
        say("sending the same request with another key")
        fresh = await self._patiently(fresh_key, args)
        say(f"sending {at_once} requests at the same time with one key")
        crowd = await asyncio.gather(*(self._send(crowd_key, args) for _ in range(at_once)))
        after = await self._patiently(crowd_key, args)
        seen = Seen(first=first, again=again, fresh=fresh, crowd=list(crowd), after_crowd=after)
        if other is not None:
            say("sending another body with a key that was used before")
            seen.other = await self._patiently(first_key, other)
        if refused is not None:
            say("sending arguments that the far end refuses, then valid arguments with the same key")
            refused_key = _Key()
            seen.refused = await self._patiently(refused_key, refused)
            seen.mended = await self._patiently(refused_key, args)
        if self._tool.finder is not None:
            say("the lookup")
            seen.found = await self._look(first_key, args, until=Looked.ABSENT)
            seen.unused = await self._look(_Key(), args)
        return seen

    async def _patiently(self, key: _Key, args: Args) -> Outcome:
        """The end of the request; waits while the far end is busy."""
        return await self._again_while(lambda found: found.kind is Kind.BUSY, lambda: self._send(key, args))

    async def _again_while(self, waits: Callable[[T], bool], once: Callable[[], Awaitable[T]]) -> T:
        found = await once()
        for _ in range(BUSY_TRIES):
            if not waits(found):
                break
            await asyncio.sleep(self._wait_s / BUSY_TRIES)
            found = await once()
        return found

    async def _send(self, key: _Key, args: Args) -> Outcome:
        try:
            value = await self._timed(self._tool.bound(self._call(key, lookup=False), dict(args)))
            return Outcome(Kind.ANSWER, canonical(checked(value, what="the answer")))
        except Refused as error:
            return Outcome(Kind.REFUSED, repr(error.proof).encode(errors="replace"))
        except Busy:
            return Outcome(Kind.BUSY)
        except KeyReused as error:
            return Outcome(Kind.KEY_REUSED, text_of(error).encode(errors="replace"))
        except NotSent as error:
            return Outcome(Kind.FAILED, f"not sent: {error}".encode(errors="replace"))
        except Exception as error:  # noqa: BLE001 - user code may raise anything
            return Outcome(Kind.FAILED, f"{type(error).__name__}: {text_of(error)}".encode(errors="replace"))

    async def _look(self, key: _Key, args: Args, *, until: Looked | None = None) -> Looked:
        """What the lookup answers; asked again while it is `until`, because lookups may lag."""
        return await self._again_while(lambda looked: looked is until, lambda: self._look_once(key, args))

    async def _look_once(self, key: _Key, args: Args) -> Looked:
        finder = self._tool.finder
        if finder is None:
            return Looked.UNSURE
        try:
            answer = await self._timed(lambda: finder(self._call(key, lookup=True), **args))
        except Exception:  # noqa: BLE001 - a failed lookup proves nothing
            return Looked.UNSURE
        match answer:
            case Found():
                return Looked.FOUND
            case Absent():
                return Looked.ABSENT
            case Many():
                return Looked.MANY
            case _:
                return Looked.UNSURE

    async def _timed(self, start: Callable[[], Any]) -> object:
        async with asyncio.timeout(self._tool.timeout_s):
            value = await asyncio.to_thread(start) if self._tool.blocking else start()
            return await cast("Awaitable[object]", value) if inspect.isawaitable(value) else value

    def _call(self, key: _Key, *, lookup: bool) -> Call:
        ends = asyncio.get_running_loop().time() + self._tool.timeout_s
        return Call(
            task_id=key.task_id,
            ordinal="1",
            fence=1,
            attempt=1,
            effect_key=key.raw,
            ends=ends,
            mark=lambda: None,
            effect=self._tool.effect,
            lookup=lookup,
        )


class _Key:
    """A key and its task id: far ends may know a request by either."""

    __slots__ = ("raw", "task_id")

    def __init__(self) -> None:
        self.raw = os.urandom(16)
        self.task_id = task_id_from_bytes(os.urandom(16))
