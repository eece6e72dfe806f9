"""What the tests of identities share: public vectors, quick slots, a phrase everybody knows."""

from __future__ import annotations

import pytest

from holdfast.core.clock import SeededEntropy
from holdfast.identity.paper.phrase import Phrase, new_phrase


@pytest.fixture
def phrase() -> Phrase:
    return new_phrase(SeededEntropy(24))
