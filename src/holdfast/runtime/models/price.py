"""What a reply costs, by prices that the user gives: no table of ours could stay right.

Prices are in micro-units of a currency per token, which is the same number as units per million
tokens: a model at 3 dollars per million tokens of input has `input=3`. Costs are whole micro-units,
rounded up, so that a cap is never passed by rounding.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from fractions import Fraction

from holdfast.errors import BadSettings
from holdfast.runtime.models.reply import Usage

PRICE_MAX = 1_000_000
UNIT_CHARS_MAX = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """Micro-units per token. Where `cached` or `cache_write` is not given, `input` holds."""

    input: float
    output: float
    cached: float | None = None
    cache_write: float | None = None
    unit: str = "USD"

    def __post_init__(self) -> None:
        for name in ("input", "output", "cached", "cache_write"):
            value = getattr(self, name)
            if value is not None and not (
                type(value) in (int, float) and 0 <= value <= PRICE_MAX and math.isfinite(value)
            ):
                raise BadSettings(f"price: {name} is a number from 0 to {PRICE_MAX:,}")
        if not 1 <= len(self.unit) <= UNIT_CHARS_MAX or not self.unit.isalnum():
            raise BadSettings("price: unit is a currency's short name, such as USD")

    def cost(self, usage: Usage) -> int:
        """What these tokens cost, in micro-units."""
        cached = min(usage.cached_tokens or 0, usage.input_tokens)
        written = min(usage.cache_write_tokens or 0, usage.input_tokens - cached)
        fresh = usage.input_tokens - cached - written
        return math.ceil(
            fresh * exact(self.input)
            + cached * exact(self.input if self.cached is None else self.cached)
            + written * exact(self.input if self.cache_write is None else self.cache_write)
            + usage.output_tokens * exact(self.output)
        )

    def most(self, *, input_tokens: int, output_tokens: int) -> int:
        """The most that so many tokens can cost."""
        dearest = max(price for price in (self.input, self.cached, self.cache_write) if price is not None)
        return math.ceil(input_tokens * exact(dearest) + output_tokens * exact(self.output))


@functools.lru_cache(256)
def exact(price: float) -> Fraction:
    """The price as it was written: 0.1 is a tenth."""
    return Fraction(str(price))
