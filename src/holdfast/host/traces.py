"""What a record keeps of an exception besides its name and message: where it arose, and the whole traceback.

`where` is the last frame of the user's own code: not of Holdfast, not of Python's library, and, where there is another,
not of an installed package. Both are texts, made in the process in which the exception arose. A traceback quotes lines
of source and the message, never the values of variables.
"""

from __future__ import annotations

import functools
import sys
import traceback
from pathlib import Path
from typing import NamedTuple

TRACE_CHARS_MAX = 8_000  # of a traceback that is kept; its end says most
WHERE_CHARS_MAX = 500
_OURS = f"{Path(__file__).parents[1]}/"
_INSTALLED = ("/site-packages/", "/dist-packages/")


class Trace(NamedTuple):
    where: str = ""  # `/srv/shop.py:31 in check: total = price * count`
    text: str = ""


def trace_of(error: BaseException) -> Trace:
    """Of an exception that was raised; empty where it was only made."""
    if error.__traceback__ is None:
        return Trace()
    try:
        text = "".join(traceback.format_exception(error))
        frames = traceback.extract_tb(error.__traceback__)
    except Exception:  # noqa: BLE001 - it asks the exception for its message, and that is user code
        return Trace()
    return Trace(_where(frames), text.encode(errors="replace").decode())


def caller(above: int = 1) -> tuple[str, int]:
    """The file and line of the newest frame that is not Holdfast's own. `above`: so many are, as the caller knows."""
    frame = sys._getframe(above)  # pyright: ignore[reportPrivateUsage] - `inspect.stack` reads every file of the stack
    while frame.f_code.co_filename.startswith(_OURS) and frame.f_back is not None:
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno


def cut_trace(text: str) -> str:
    """The end of a traceback that is too long to keep."""
    return text if len(text) <= TRACE_CHARS_MAX else f"...\n{text[4 - TRACE_CHARS_MAX :]}"


@functools.cache
def _python() -> tuple[str, ...]:
    """Where Python's own library is. Loaded when it is asked for: it brings a large table along."""
    import sysconfig

    return tuple(f"{sysconfig.get_path(name)}/" for name in ("stdlib", "platstdlib"))


def _where(frames: traceback.StackSummary) -> str:
    foreign = [one for one in frames if not one.filename.startswith((_OURS, "<frozen"))]
    written = [one for one in foreign if _is_installed(one.filename) or not one.filename.startswith(_python())]
    own = [one for one in written if not _is_installed(one.filename)]
    found = next(reversed(own or written or foreign), None)
    if found is None:
        return ""
    line = f": {found.line}" if found.line else ""
    return f"{found.filename}:{found.lineno} in {found.name}{line}".encode(errors="replace").decode()


def _is_installed(name: str) -> bool:
    return any(part in name for part in _INSTALLED)
