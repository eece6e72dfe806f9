"""Reading what may never answer: a mount whose server is gone holds a thread in the kernel for as long as it likes.

Each source is read in a daemon thread of its own, so a read that hangs holds up neither the other sources nor the end
of the process; a thread of an executor would hold up both, because asyncio and Python wait for those. While a read
hangs its source counts as silent at once and no second thread is begun for it. What it gives in the end is thrown away:
it may be old by then, and a fresh read is begun.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import Future, wait
from typing import Generic, TypeVar

from holdfast.errors import HoldfastError

T = TypeVar("T")
HANGS = "a read that was begun earlier still hangs"


class SlowReads(Generic[T]):
    """Reads of one kind; it remembers which of them hang."""

    def __init__(self) -> None:
        self._hanging: dict[tuple[Hashable, str], Future[T]] = {}

    def read(
        self, sources: Mapping[str, Callable[[], T]], *, of: Hashable, within_s: float
    ) -> tuple[dict[str, T], dict[str, str]]:
        """What each source gave, by its name, and those that did not answer, with the reason. A name means one source
        for each `of`. Raises what a read raises that is no HoldfastError or OSError."""
        begun = {name: _begin(read) for name, read in sources.items() if not self._hangs((of, name))}
        wait(begun.values(), timeout=within_s)
        answered, silent = dict[str, T](), {name: HANGS for name in sources if name not in begun}
        for name, future in begun.items():
            if not future.done():
                self._hanging[of, name] = future
                silent[name] = f"no answer within {within_s:g} s"
                continue
            try:
                answered[name] = future.result()
            except (HoldfastError, OSError) as error:
                silent[name] = str(error) or type(error).__name__
        return answered, silent

    def _hangs(self, key: tuple[Hashable, str]) -> bool:
        before = self._hanging.get(key)
        if before is not None and before.done():
            self._hanging.pop(key, None)
        return before is not None and not before.done()


def _begin(read: Callable[[], T]) -> Future[T]:
    future: Future[T] = Future()

    def work() -> None:
        try:
            future.set_result(read())
        except BaseException as error:  # noqa: BLE001 - it is raised where the answer is taken
            future.set_exception(error)

    threading.Thread(target=work, name="holdfast slow read", daemon=True).start()
    return future
