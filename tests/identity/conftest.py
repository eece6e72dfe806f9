"""What the tests of identities share: public vectors, quick slots, a phrase everybody knows."""

from __future__ import annotations

import pytest

from holdfast.identity.paper.phrase import Phrase, new_phrase
from holdfast.testing.clocks import SeededEntropy


@pytest.fixture
def phrase() -> Phrase:
    return new_phrase(SeededEntropy(24))
