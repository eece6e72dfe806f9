"""How far long work is, on standard error.

On a terminal, one line is rewritten with everything that is under way; it disappears when another
message is printed and when the work ends. Elsewhere, each piece of work prints a line every ten
seconds, so that a log stays short and quick work prints nothing. Standard output is never touched.
May be called from any thread. If standard error is closed, it stops printing; the work continues.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from types import TracebackType

from holdfast.backup.engine import Amount
from holdfast.cli.screen.screen import one_line, shown, talk

EVERY_S = 10.0
REDRAW_S = 0.2
COLUMNS = 80  # if the terminal does not say
STALE_S = 2.0  # work without progress for so long leaves the line
_CLEAR = "\r\x1b[K"


class Progress:
    """Prints progress. `with Progress() as news:` leaves a clean line behind."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._terminal = sys.stderr.isatty()
        self._clock = clock
        self._turn = threading.Lock()
        self._going: dict[str, tuple[float, str]] = {}
        self._told: dict[str, float] = {}
        self._drawn_at = 0.0
        self._drawn = False

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.clear()

    def clear(self) -> None:
        """Leave a clean line, for others that write to the screen."""
        with self._turn, self._unheard():
            self._clear()

    def say(self, text: str, /) -> None:
        with self._turn, self._unheard():
            self._clear()
            self._going.clear()  # mostly something has ended; the rest comes back
            talk(text)

    def reached(self, what: str, amount: Amount, /) -> None:
        now = self._clock()
        with self._turn, self._unheard():
            if self._terminal:
                begins = self._going.pop(what, None) is None
                self._going[what] = (now, f"{what}: {amount_text(amount)}")
                if begins or now - self._drawn_at >= REDRAW_S:
                    self._draw(now)
            elif now - self._told.setdefault(what, now) >= EVERY_S:
                self._told[what] = now
                talk(f"{what}: {amount_text(amount)}")

    def waits(self, text: str, /) -> None:
        """What is waited for; on a terminal alone, until something else is shown."""
        now = self._clock()
        with self._turn, self._unheard():
            if self._terminal:
                self._going[text] = (now, text)
                self._draw(now)

    @staticmethod
    def _unheard() -> AbstractContextManager[None]:
        return suppress(OSError, ValueError)

    def _draw(self, now: float) -> None:
        self._going = {name: one for name, one in self._going.items() if now - one[0] < STALE_S}
        text = " | ".join(text for _, text in reversed(self._going.values()))
        sys.stderr.write(_CLEAR + one_line(shown(text), chars_max=max(_columns() - 1, 20)))
        sys.stderr.flush()
        self._drawn_at, self._drawn = now, True

    def _clear(self) -> None:
        if self._drawn:
            sys.stderr.write(_CLEAR)
            sys.stderr.flush()
        self._drawn = False


def _columns() -> int:
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns or COLUMNS
    except (OSError, ValueError):
        return COLUMNS


def amount_text(amount: Amount) -> str:
    """`12 of 340 files, 1.2 of 30.4 MB (4 %)`."""
    parts: list[str] = []
    if amount.files or amount.files_all:
        whole = f" of {amount.files_all:,}" if amount.files_all else ""
        parts.append(f"{amount.files:,}{whole} files")
    whole = f" of {_mb(amount.bytes_all)}" if amount.bytes_all else ""
    parts.append(f"{_mb(amount.bytes)}{whole} MB")
    share = ""
    if amount.bytes_all:
        share = f" ({min(100 * amount.bytes // amount.bytes_all, 100)} %)"
    return ", ".join(parts) + share


def _mb(size: int) -> str:
    return f"{size / 1e6:,.1f}"
