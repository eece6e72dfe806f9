"""Run the scripted model server: `python -m holdfast.testing.model_server SCRIPT.json --port 0`.

It prints one line of JSON with its port and process id, and ends with its input, its parent or a
SIGTERM.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import sys
from pathlib import Path

import msgspec

from holdfast.testing.model_server.script import Script, parse_script
from holdfast.testing.model_server.server import listen
from holdfast.testing.model_server.service import ModelService

PARENT_CHECK_S = 0.5


def main() -> None:
    options = _parser().parse_args()
    asyncio.run(_serve(options.script, options.log, port=options.port, parent=options.parent))


async def _serve(script: Script, log: Path | None, *, port: int, parent: int | None) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    loop.add_signal_handler(signal.SIGINT, stop.set if parent is None else lambda: None)
    server, bound = await listen(ModelService(script, log=log), port=port)
    _stop_when_input_closes(stop)
    print(json.dumps({"port": bound, "pid": os.getpid()}), flush=True)
    while not stop.is_set():
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), None if parent is None else PARENT_CHECK_S)
        if parent is not None and os.getppid() != parent:
            stop.set()
    server.close()


def _stop_when_input_closes(stop: asyncio.Event) -> None:
    """A pipe as input is a lifeline; a file, /dev/null or a terminal is none."""
    if sys.stdin is None or sys.stdin.isatty():  # None: closed from the start
        return
    descriptor = sys.stdin.fileno()
    loop = asyncio.get_running_loop()

    def read() -> None:
        if not os.read(descriptor, 4096):
            loop.remove_reader(descriptor)
            stop.set()

    with contextlib.suppress(PermissionError):  # not something that can be waited for
        loop.add_reader(descriptor, read)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m holdfast.testing.model_server")
    add = parser.add_argument
    parser.description = "A model server that says what a script tells it, with faults."
    add("script", type=_script, metavar="SCRIPT.json", help="answers and faults")
    add("--port", type=int, default=0, help="0 takes a free one (default)")
    add("--log", type=Path, help="append every request to this file, one JSON line each")
    add("--parent", type=int, help="end when this is no longer our parent process")
    return parser


def _script(name: str) -> Script:
    try:
        return parse_script(Path(name).read_bytes())
    except (OSError, msgspec.MsgspecError) as error:
        raise argparse.ArgumentTypeError(f"{name}: {error}") from error


if __name__ == "__main__":
    main()
