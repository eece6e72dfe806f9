"""The far end's own books: every request that arrived and every effect that took place.

An effect is written to the log file before its answer is made, so what a client was told is
never more than what is counted here. "Twice" is counted per task and base ordinal where the
request names them, else per key, else per reference: a retry slot `4.r1` means step 4.
An idempotent write may come twice; what counts there is a repeat that changed the end state,
because it had another body or landed over a newer write of another step.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path


@dataclass(slots=True, kw_only=True)
class Seen:
    """One request, in order of arrival. `outcome` is filled in when it is known."""

    n: int
    at_ms: int
    method: str
    path: str
    key: str | None = None
    reference: str | None = None
    task: str | None = None
    step: str | None = None
    fence: int | None = None
    body_sha256: str = ""
    fault: str | None = None
    peer: str = ""  # the address that it came from
    outcome: str = "inside"
    status: int | None = None
    effect: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """One effect that took place."""

    id: str
    n: int
    request: int
    at_ms: int
    kind: str
    key: str | None
    reference: str | None
    task: str | None
    step: str | None
    base: str | None
    fence: int | None
    resource: str | None
    body_sha256: str
    body: object


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """What `GET /_ledger` shows."""

    kind: str
    effects: tuple[Done, ...]
    requests: tuple[Seen, ...]
    by_key: dict[str, int]
    by_reference: dict[str, int]
    by_base: dict[str, int]  # "task/base ordinal"
    duplicates: int
    resources: dict[str, object] = field(default_factory=dict[str, object])

    @property
    def count(self) -> int:
        return len(self.effects)


class Ledger:
    def __init__(self, *, kind: str, prefix: str, log: Path | None) -> None:
        self._kind = kind
        self._prefix = prefix
        self.effects: list[Done] = []
        self.requests: list[Seen] = []
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
        self._log = None if log is None else os.open(log, flags, 0o600)

    def arrived(self, *, method: str, path: str, at_ms: int) -> Seen:
        seen = Seen(n=len(self.requests) + 1, at_ms=at_ms, method=method, path=path)
        self.requests.append(seen)
        return seen

    def done(self, seen: Seen, *, at_ms: int, resource: str | None, body: object) -> Done:
        """Count the effect and append it to the log in one write."""
        number = len(self.effects) + 1
        effect = Done(
            id=f"{self._prefix}_{number:06}",
            n=number,
            request=seen.n,
            at_ms=at_ms,
            kind=self._kind,
            key=seen.key,
            reference=seen.reference,
            task=seen.task,
            step=seen.step,
            base=None if seen.step is None else base_ordinal(seen.step),
            fence=seen.fence,
            resource=resource,
            body_sha256=seen.body_sha256,
            body=body,
        )
        self.effects.append(effect)
        seen.effect = effect.id
        if self._log is not None:
            os.write(self._log, json.dumps(asdict(effect), separators=(",", ":")).encode() + b"\n")
        return effect

    def clear(self) -> None:
        """Begin new books; the log file keeps the old lines."""
        self.effects.clear()
        self.requests.clear()

    def page(self, resources: dict[str, object]) -> Page:
        return Page(
            kind=self._kind,
            effects=tuple(self.effects),
            requests=tuple(self.requests),
            by_key=dict(Counter(e.key for e in self.effects if e.key)),
            by_reference=dict(Counter(e.reference for e in self.effects if e.reference)),
            by_base=dict(Counter(f"{e.task}/{e.base}" for e in self.effects if e.task and e.base)),
            duplicates=count_duplicates(self.effects, repeats_allowed=self._kind == "idempotent"),
            resources=resources,
        )


def count_duplicates(effects: Iterable[Done], *, repeats_allowed: bool) -> int:
    """How many effects are one too many."""
    first: dict[str, Done] = {}
    last: dict[str | None, str] = {}
    count = 0
    for effect in effects:
        identity = _identity(effect)
        if identity is None:
            continue
        earlier = first.setdefault(identity, effect)
        harmless = (
            repeats_allowed and earlier.body_sha256 == effect.body_sha256 and last.get(effect.resource) == identity
        )
        if earlier is not effect and not harmless:
            count += 1
        last[effect.resource] = identity
    return count


def base_ordinal(step: str) -> str:
    """The step that a slot means. Not the runtime's own rule: a judge has its own."""
    parts = step.split(".")
    while len(parts) > 1 and parts[-1][:1] == "r":
        parts.pop()
    return ".".join(parts)


def _identity(effect: Done) -> str | None:
    if effect.task and effect.base:
        return f"step {effect.task}/{effect.base}"
    if effect.key:
        return f"key {effect.key}"
    return f"reference {effect.reference}" if effect.reference else None
