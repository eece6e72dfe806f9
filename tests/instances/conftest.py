"""What tests of several instances share."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest

from holdfast.instances.line_document import LineDocument


@pytest.fixture
def open_documents() -> Callable[[], int]:
    """How many documents are open that this test opened: others of this process may live on."""

    def found() -> list[LineDocument]:
        gc.collect()
        return [one for one in gc.get_objects() if isinstance(one, LineDocument)]

    before = found()
    return lambda: sum(all(one is not other for other in before) for one in found())
