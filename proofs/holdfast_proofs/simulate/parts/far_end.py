"""The far ends: one service per effect class, each keeping its contract and no more.

They are the judge. What took effect is counted here, per task and ordinal, and nowhere else; the
journal's story is compared with it afterwards. Every service may refuse, be busy, fail after or
before doing the work, and be slow, but no request takes effect later than DELAY_S after it was
sent: that is the assumption the protocol makes of far ends, so the simulated ones keep it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from holdfast.errors import Busy, KeyReused, Refused
from holdfast_proofs.simulate.faults import DELAY_S, WINDOW_S, Dice, Profile
from holdfast_proofs.simulate.parts.loop import VirtualLoop
from holdfast_proofs.simulate.trace import Trace

BUSY_S = 0.3
LATEST = 0.98  # of DELAY_S

Kind = Literal["read", "plain", "keyed", "stored", "fenced"]
Answer = Callable[[object], None]  # takes a value, or an exception to raise


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    kind: Kind
    tool: str
    task_id: str
    ordinal: str
    effect_key: str
    fence: int
    what: int
    sent_s: float

    @property
    def place(self) -> tuple[str, str]:
        return (self.task_id, self.ordinal)

    def __str__(self) -> str:
        return f"{self.kind} {self.task_id[-4:]}/{self.ordinal}"


@dataclass(slots=True)
class Remembered:
    """What a keyed service knows of a key."""

    first_s: float
    what: int
    running: bool = True
    result: object = None
    refused: bool = False


class FarEnd:
    def __init__(self, loop: VirtualLoop, dice: Dice, profile: Profile, trace: Trace) -> None:
        self._loop = loop
        self._dice = dice
        self._profile = profile
        self._trace = trace
        self._keys: dict[str, Remembered] = {}
        self._fences: dict[int, int] = {}
        self._receipts = 0
        self.done: dict[tuple[str, str], list[object]] = {}  # results, one per effect
        self.by_key: dict[tuple[str, str], list[tuple[object, int]]] = {}  # results and arguments
        self.under_way = 0
        self.on_effect: Callable[[Request, object], None] = lambda _request, _result: None

    def arrive(self, request: Request, answer: Answer) -> None:
        """A request reaches the service."""
        told = self._at_the_door(request)
        if told is not None:
            self._trace.note("far end", f"{request}: {told!r}")
            answer(told)
            return
        self.under_way += 1
        left = request.sent_s + DELAY_S * LATEST - self._loop.now_s
        slow = self._dice.hits(self._profile.slow)
        work_s = self._dice.seconds(0.0, max(left, 0.0)) if slow else min(0.01, max(left, 0.0))
        self._loop.at(work_s, self._work, request, answer)

    def find(self, tool: str, effect_key: str) -> list[tuple[object, int]]:
        """Results and arguments of this tool's effects under this key: a lookup answers for its
        own tool only, as docs/how-to/restore-an-older-journal.md asks of it."""
        return self.by_key.get((tool, effect_key), [])

    def count(self, task_id: str, ordinal: str) -> int:
        return len(self.done.get((task_id, ordinal), ()))

    def _at_the_door(self, request: Request) -> object | None:
        """An answer that needs no work: what is remembered, or no time for it now."""
        if request.kind == "read":
            return None
        known = self._recall(request)
        if known is not None:
            return self._repeat(known, request)
        if self._dice.hits(self._profile.busy):
            return Busy(self._dice.seconds(0.1, BUSY_S))
        if request.kind in ("keyed", "stored"):
            self._keys[request.effect_key] = Remembered(self._loop.now_s, request.what)
        return None

    def _recall(self, request: Request) -> Remembered | None:
        known = self._keys.get(request.effect_key)
        if known is None:
            return None
        forgets = request.kind != "fenced"
        return None if forgets and self._loop.now_s - known.first_s >= WINDOW_S else known

    def _repeat(self, known: Remembered, request: Request) -> object:
        if known.what != request.what:
            return KeyReused({"known": known.what})
        if known.running:
            return Busy(BUSY_S)
        return Refused("refused before") if known.refused else known.result

    def _work(self, request: Request, answer: Answer) -> None:
        self.under_way -= 1
        told = self._perform(request)
        self._trace.note("far end", f"{request}: {told!r}")
        answer(told)

    def _perform(self, request: Request) -> object:
        known = self._keys.get(request.effect_key)
        if request.kind == "fenced":
            stale = self._stale(request)
            if stale is not None:
                return stale
        breaks = self._dice.hits(self._profile.error)
        if breaks and self._dice.coin():
            self._forget(request, known)
            return RuntimeError("500 before the work")
        if self._dice.hits(self._profile.refused):
            self._refuse(request, known)
            return Refused({"why": "not today"})
        result = self._take_effect(request)
        if known is not None and request.kind in ("keyed", "stored"):
            known.running, known.result = False, result
        elif request.kind == "fenced":
            self._keys[request.effect_key] = Remembered(self._loop.now_s, request.what, running=False, result=result)
        return RuntimeError("500 after the work") if breaks else result

    def _stale(self, request: Request) -> object | None:
        """A fenced service knows its keys for ever and refuses fences lower than the highest."""
        known = self._keys.get(request.effect_key)
        if known is not None:
            return known.result
        highest = self._fences.get(request.what, -1)
        if request.fence < highest:
            return Refused({"fence": "lower than one already seen"})
        self._fences[request.what] = request.fence
        return None

    def _refuse(self, request: Request, known: Remembered | None) -> None:
        if known is not None and request.kind == "stored":
            known.running, known.refused = False, True
        else:
            self._forget(request, known)

    def _forget(self, request: Request, known: Remembered | None) -> None:
        if known is not None and request.kind in ("keyed", "stored"):
            del self._keys[request.effect_key]

    def _take_effect(self, request: Request) -> object:
        if request.kind == "read":
            return {"read": request.what}
        self._receipts += 1
        result = {"receipt": self._receipts}
        self.done.setdefault(request.place, []).append(result)
        self.by_key.setdefault((request.tool, request.effect_key), []).append((result, request.what))
        self._trace.note("far end", f"{request}: EFFECT {self._receipts}")
        self.on_effect(request, result)
        return result
