"""Test vectors that others wrote: whole folders where they are at hand, else our copies.

`HOLDFAST_VECTORS` names a folder with one folder for each suite; without it `shared/vectors`
beside the checkout is used where there is one, and at last tests/vectors, which holds what a
bare clone needs (origin and licence in SUITE.origin.json).
"""

from __future__ import annotations

import os
from pathlib import Path

CHECKOUT = Path(__file__).parents[3]


def vectors(suite: str) -> Path:
    """The folder of a suite."""
    named = os.environ.get("HOLDFAST_VECTORS")
    places = [Path(named)] if named else [CHECKOUT.parent / "shared" / "vectors"]
    return next((place / suite for place in places if (place / suite).is_dir()), CHECKOUT / "tests" / "vectors" / suite)
