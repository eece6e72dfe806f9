"""How errors are printed: what happened, what to do, which page explains it."""

from __future__ import annotations

import json
import os
import sys

from holdfast.cli.screen.text import shown
from holdfast.core.secret_handles import safe
from holdfast.errors import HoldfastError

INTERNAL_HINT = "this is a bug in Holdfast. Please report it with the output of `HOLDFAST_TRACE=1 holdfast ...`"


def report_error(error: HoldfastError, *, as_json: bool) -> None:
    """Print a known error to standard error."""
    if as_json:
        _print_json(error.code, error.message, error.hint, error.page, error.exit_code)
    else:
        _print("error", error.message)
        if error.hint:
            _print("hint", error.hint)
        _print("see", error.page)
    _trace(error)


def report_internal(error: Exception, *, as_json: bool) -> None:
    """Print a bug in one line; the traceback only if HOLDFAST_TRACE asks for it."""
    text = f"internal: {type(error).__name__}: {error}"
    if as_json:
        _print_json("internal", text, INTERNAL_HINT, "docs/reference/errors.md#internal", 1)
    else:
        _print("error", text)
        _print("hint", INTERNAL_HINT)
    _trace(error)


def _print(label: str, text: str) -> None:
    print(f"{label}: {shown(text)}", file=sys.stderr)


def _print_json(code: str, message: str, hint: str, page: str, exit_code: int) -> None:
    fields = {"code": code, "message": safe(message), "hint": hint, "page": page, "exit_code": exit_code}
    print(json.dumps({"error": fields}), file=sys.stderr)


def _trace(error: BaseException) -> None:
    if os.environ.get("HOLDFAST_TRACE") == "1":
        import traceback

        sys.stderr.write(safe("".join(traceback.format_exception(error))))
