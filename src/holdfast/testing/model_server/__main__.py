"""Run the scripted model server: `python -m holdfast.testing.model_server SCRIPT.json --port 0`.

It prints one line of JSON with its port and process id, and ends with its input, its parent or a SIGTERM.
"""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

import msgspec

from holdfast.downstream.http_server import run
from holdfast.testing.model_server.script import Script, parse_script
from holdfast.testing.model_server.server import ModelService, listen


def main() -> None:
    options = _parser().parse_args()
    service = ModelService(options.script, log=options.log)
    asyncio.run(run(listen(service, port=options.port), parent=options.parent))


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
