"""Run one far end: `python -m holdfast.downstream --class keyed --port 0 --log FILE`."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import sys
from pathlib import Path

from holdfast.downstream.faults import BadFault, Fault, Faults, parse_fault
from holdfast.downstream.profiles import PROFILES
from holdfast.downstream.server import listen
from holdfast.downstream.service import Service, Settings

PARENT_CHECK_S = 0.5


def main() -> None:
    options = _parser().parse_args()
    settings = Settings(
        profile=PROFILES[options.profile],
        window_s=options.window_s,
        fingerprint=options.fingerprint,
        refusals_stored=options.refusals == "stored",
        lookup=options.lookup == "on",
        key_header=options.key_header,
        log=options.log,
    )
    asyncio.run(_serve(settings, options.fault, port=options.port, parent=options.parent))


async def _serve(settings: Settings, faults: list[Fault], *, port: int, parent: int | None) -> None:
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    # Ctrl-C in a demo reaches the whole group; the parent decides when its far ends go.
    loop.add_signal_handler(signal.SIGINT, stop.set if parent is None else lambda: None)
    service = Service(settings, Faults(faults))
    server, bound = await listen(service, port=port)
    _stop_when_input_closes(stop)
    ready = {"class": settings.profile.name, "port": bound, "pid": os.getpid()}
    sys.stdout.write(json.dumps(ready) + "\n")
    sys.stdout.flush()
    while not stop.is_set():
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), None if parent is None else PARENT_CHECK_S)
        # A forked sibling can hold our input open; the parent's death ends us all the same.
        if parent is not None and os.getppid() != parent:
            stop.set()
    server.close()


def _stop_when_input_closes(stop: asyncio.Event) -> None:
    """A pipe or socket as input is a lifeline; a file, /dev/null or a terminal is none.

    What is typed on a terminal is for the shell: reading it in the background would stop us.
    """
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
    parser = argparse.ArgumentParser(prog="python -m holdfast.downstream", description=__doc__)
    add = parser.add_argument
    add("--class", dest="profile", required=True, choices=sorted(PROFILES))
    add("--port", type=int, default=0, help="0 takes a free one (default)")
    add("--log", type=Path, help="append every effect to this file, one JSON line each")
    add("--window-s", type=float, default=86_400.0, help="how long a key is known")
    add("--fingerprint", choices=("checked", "ignored"), default="checked")
    add("--refusals", choices=("stored", "not-stored"), default="stored")
    add("--lookup", choices=("on", "off"), default="on", help="whether clients may ask")
    add("--key-header", default="Idempotency-Key")
    add("--fault", type=_fault, action="append", default=[], help='as JSON: {"kind": ...}')
    add("--parent", type=int, help="end when this is no longer our parent process")
    return parser


def _fault(text: str) -> Fault:
    try:
        return parse_fault(json.loads(text))
    except (BadFault, ValueError) as error:
        raise argparse.ArgumentTypeError(str(error)) from error


if __name__ == "__main__":
    main()
