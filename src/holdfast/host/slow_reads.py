"""Reading what may never answer: a mount whose server is gone holds a thread in the kernel for as long as it likes.

Each source is read in a daemon thread of its own, so a read that hangs holds up neither the other sources nor the end
of the process; a thread of an executor would hold up both, because asyncio and Python wait for those. While a read
hangs its source counts as silent at once and no second thread is begun for it. What it gives in the end is used once,
where the fresh read that is begun then gives nothing in time: else a source that is always late would never be heard.
So the answers must be such that an old one does no harm.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterable, Mapping
from concurrent.futures import Future, wait
from typing import Generic, TypeVar

T = TypeVar("T")
HANGS = "a read that was begun earlier still hangs"


class SlowReads(Generic[T]):
    """Reads of one kind; it remembers which of them hang."""

    def __init__(self) -> None:
        self._hanging: dict[tuple[Hashable, str], Future[T]] = {}

    def read(
        self, sources: Mapping[str, Callable[[], T]], *, of: Hashable, within_s: float
    ) -> tuple[dict[str, T], dict[str, str]]:
        """What each source gave, by its name, and those that did not answer, with the reason: no error of one keeps
        back what the others gave. A name means one source for each `of`."""
        late = {name: self._hanging.pop((of, name)) for name in sources if self._has_ended((of, name))}
        begun = {name: begin(read) for name, read in sources.items() if (of, name) not in self._hanging}
        wait(begun.values(), timeout=within_s)
        answered, silent = dict[str, T](), {name: HANGS for name in sources if name not in begun}
        for name, future in begun.items():
            is_done = future.done()
            if not is_done:
                self._hanging[of, name] = future
            if not is_done and name not in late:
                silent[name] = f"no answer within {within_s:g} s"
                continue
            use_late = name in late and (not is_done or future.exception() is not None)
            try:
                answered[name] = (late[name] if use_late else future).result()
            except Exception as error:  # noqa: BLE001 - an eviction that another source shows must be seen
                silent[name] = str(error) or type(error).__name__
        return answered, silent

    def is_late(self, sources: Iterable[str], *, of: Hashable) -> bool:
        """Whether a read of them still runs, or has ended and was not used yet."""
        return any((of, name) in self._hanging for name in sources)

    def _has_ended(self, key: tuple[Hashable, str]) -> bool:
        """Whether the read that hung has ended since."""
        return key in self._hanging and self._hanging[key].done()


def begin(read: Callable[[], T]) -> Future[T]:
    """In a daemon thread of its own, which nothing waits for at the end of the process."""
    future: Future[T] = Future()
    future.set_running_or_notify_cancel()  # who no longer waits for the answer does not end the thread

    def work() -> None:
        try:
            future.set_result(read())
        except BaseException as error:  # noqa: BLE001 - it is raised where the answer is taken
            future.set_exception(error)

    threading.Thread(target=work, name="holdfast slow read", daemon=True).start()
    return future
