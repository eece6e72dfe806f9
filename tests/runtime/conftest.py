"""What the tests of the runtime share: a journal of their own, and far ends that are kept warm."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from contextlib import ExitStack
from pathlib import Path

import pytest

from holdfast.downstream.process import BlockingFarEnd, FarEnd, Kind, start_blocking
from holdfast.testing.lab import Lab

PROGRAMS = Path(__file__).parent / "programs"


@pytest.fixture
def lab(tmp_path: Path) -> Lab:
    return Lab(tmp_path / "agent")


@pytest.fixture
def script() -> Callable[[str], Path]:
    """A program that a test runs in processes of its own."""
    return lambda name: PROGRAMS / f"{name}.py"


@pytest.fixture(scope="session")
def _warm() -> Generator[dict[tuple[str, bool], BlockingFarEnd]]:
    with ExitStack() as stack:
        started = _Started(stack)
        yield started


class _Started(dict[tuple[str, bool], BlockingFarEnd]):
    def __init__(self, stack: ExitStack) -> None:
        super().__init__()
        self._stack = stack

    def __missing__(self, key: tuple[Kind, bool]) -> BlockingFarEnd:
        kind, stored = key
        far_end = self._stack.enter_context(start_blocking(kind, refusals_stored=stored))
        self[key] = far_end
        return far_end


@pytest.fixture
def far_end(_warm: dict[tuple[str, bool], BlockingFarEnd]) -> Callable[..., Awaitable[FarEnd]]:
    """A far end of this kind with new books; the process is shared by the tests of a worker."""

    async def get(kind: Kind, *, refusals_stored: bool = True) -> FarEnd:
        found = _warm[kind, refusals_stored].far_end
        await found.reset()
        return found

    return get
