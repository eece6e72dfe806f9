"""What model calls are counted as where spending has a cap: pure decisions.

A cap must hold against providers that do not count, or count nonsense. So each model step records
the most that it can cost (`most`, in tokens, from `_check_spend`), before it is sent; a reply whose
usage cannot be believed counts as that much, and so does every reply that was thrown away.
"""

from __future__ import annotations

from typing import cast

import msgspec

from holdfast.core.content import content_bytes
from holdfast.errors import ReplyGarbled
from holdfast.journal.records import Body, StepView
from holdfast.runtime.models.model import Price
from holdfast.runtime.models.reply import Usage
from holdfast.runtime.task.ask_step import GARBLED_MAX

MOST = "most"
# What a provider may count beyond our bound: its own prompt, pictures, hidden thoughts.
BEYOND_TIMES = 10
BEYOND_TOKENS = 1_000_000


def most_tokens(*, input_tokens: int, output_tokens: int) -> Body:
    """What goes into a model step's record under `MOST`."""
    return {"input": input_tokens, "output": output_tokens}


def find_usage(ask: StepView) -> Usage | None:
    """The usage of its reply, where it can be true."""
    try:
        usage = msgspec.convert(cast(Body, ask.result)["reply"]["usage"], Usage | None)
    except (msgspec.ValidationError, KeyError, TypeError):
        return None
    if usage is None or usage.input_tokens <= 0 or usage.output_tokens < 0:
        return None  # no prompt is empty
    if (usage.cached_tokens or 0) + (usage.cache_write_tokens or 0) > usage.input_tokens:
        return None  # parts of the prompt
    most = ask.body.get(MOST)
    if most is not None and (
        usage.input_tokens > int(most["input"]) * BEYOND_TIMES + BEYOND_TOKENS
        or usage.output_tokens > int(most["output"]) * BEYOND_TIMES + BEYOND_TOKENS
    ):
        return None
    return usage


def counted(ask: StepView, price: Price) -> int:
    """Millionths that this model step has cost, or can have cost where it is not known."""
    found = ask.result
    result = cast(Body, found) if isinstance(found, dict) else {}
    if not ask.closed:
        return 0
    if "reply" not in result:
        thrown_away = GARBLED_MAX if ask.failure.kind == ReplyGarbled.__name__ else 0
        return (thrown_away + bool(ask.unkept)) * _most(ask, price, result)
    spent = int(result.get("garbled") or 0) * _most(ask, price, result)
    if find_usage(ask) is None:
        return spent + _most(ask, price, result)
    return spent + (max(0, int(result.get("cost") or 0)) if result.get("unit") == price.unit else 0)


def _most(ask: StepView, price: Price, result: Body) -> int:
    most = ask.body.get(MOST)
    if most is None:
        return 0  # made before there was a cap
    # Without max_tokens nothing bounds a reply but itself: no token is shorter than a byte.
    output = int(most["output"]) or len(content_bytes(result.get("reply") or ""))
    return price.most(input_tokens=int(most["input"]), output_tokens=output)
