"""Codes on a scanned page, read by zbar where it is installed; a PDF is drawn by poppler first.

Pictures and what is read in them go through pipes: no file is written. The reader is a program
that others wrote, so it gets bounded input, a bounded time and nothing of our environment; what
it says is judged like anything that was typed.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from holdfast.errors import BadInput, BadSheet

PICTURE_BYTES_MAX = 64 << 20
PAGES_MAX = 64  # as many as a public card may have
PICTURES = (b"%PDF", b"\x89PNG", b"\xff\xd8\xff")
DPI = 200
SECONDS_MAX = 60.0
_READER = ("zbarimg", "--nodbus", "-q", "--raw", "-Sdisable", "-Sqrcode.enable", "-")
_PATH = "/usr/local/bin:/usr/bin:/bin:/opt/homebrew/bin"


def scan(path: Path) -> str:
    """The texts of all codes in a picture or PDF, one in a line.

    Raises BadInput where the file or the reader is missing, BadSheet where no code is found.
    """
    try:
        with path.open("rb") as file:
            raw = file.read(PICTURE_BYTES_MAX + 1)
    except OSError as error:
        raise BadInput(f"cannot read {str(path)!r}: {error.strerror}") from error
    if len(raw) > PICTURE_BYTES_MAX:
        raise BadInput(f"{str(path)!r} is larger than {PICTURE_BYTES_MAX:,} bytes")
    pages = _drawn(raw) if raw.startswith(b"%PDF") else [raw]
    found = "\n".join(_run(_READER, page) for page in pages).strip()
    if not found:
        raise BadSheet(f"no QR code found in {str(path)!r}")
    return found


def _drawn(pdf: bytes) -> list[bytes]:
    pages: list[bytes] = []
    for number in range(1, PAGES_MAX + 1):
        page = ("-f", str(number), "-l", str(number), "-singlefile")
        drawn = _run_raw(("pdftoppm", "-q", "-r", str(DPI), "-png", *page, "-"), pdf)
        if not drawn:
            break
        pages.append(drawn)
    return pages


def _run(command: tuple[str, ...], given: bytes) -> str:
    return _run_raw(command, given).decode("utf-8", "replace").strip()


def _run_raw(command: tuple[str, ...], given: bytes) -> bytes:
    program = shutil.which(command[0], path=_PATH)
    if program is None:
        raise BadInput(
            f"{command[0]} is not installed",
            hint="install it (packages zbar-tools, poppler-utils), or type the words instead",
        )
    try:
        return subprocess.run(
            (program, *command[1:]),
            input=given,
            capture_output=True,
            timeout=SECONDS_MAX,
            check=False,
            env={"PATH": _PATH, "LC_ALL": "C.UTF-8"},
            close_fds=True,
        ).stdout
    except (subprocess.TimeoutExpired, OSError) as error:
        raise BadInput(f"{command[0]} could not read the scanned page") from error
