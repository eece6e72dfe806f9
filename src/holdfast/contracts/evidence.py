"""How a webhook's word reaches the journal: a checked event becomes evidence, nothing else does."""

from __future__ import annotations

from typing import Any, Protocol

from holdfast.errors import BadReference, StepNotFound


class _Secrets(Protocol):
    def get_value(self, name: str) -> str: ...


class TakesEvidence(Protocol):
    """What an open journal (`holdfast.open`) offers to a webhook."""

    @property
    def secrets(self) -> _Secrets: ...

    async def evidence(self, *, effect_key: str = "", result: Any = None, source: str = "webhook") -> None: ...


async def tell(hf: TakesEvidence, *, effect_key: str, result: object, source: str) -> bool:
    """Hand on that it happened. False where the key belongs to no step of this journal."""
    try:
        await hf.evidence(effect_key=effect_key, result=result, source=source)
    except (StepNotFound, BadReference):
        return False
    return True
