"""Run one far end: `python -m holdfast.downstream --class keyed --port 0 --log FILE`."""

from __future__ import annotations

import argparse
import asyncio
import errno
import json
import sys
from pathlib import Path

from holdfast.downstream.faults import BadFault, Fault, Faults, parse_fault
from holdfast.downstream.http_server import LOOPBACK, run
from holdfast.downstream.profiles import PROFILES
from holdfast.downstream.service import Service, Settings, listen


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
    try:
        asyncio.run(_serve(settings, options))
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        sys.exit(
            f"error: port {options.port} is taken\nhint: stop the program that listens there, or name another --port"
        )


async def _serve(settings: Settings, options: argparse.Namespace) -> None:
    listening = listen(Service(settings, Faults(options.fault)), port=options.port, host=options.host)
    await run(listening, parent=options.parent, **{"class": settings.profile.name})


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m holdfast.downstream", description=__doc__)
    add = parser.add_argument
    add("--class", dest="profile", required=True, choices=sorted(PROFILES))
    add("--port", type=int, default=0, help="the port; 0 picks a free one (default)")
    add("--host", default=LOOPBACK, help=f"the address to listen on ({LOOPBACK})")
    add("--log", type=Path, help="append every effect to this file, one JSON line each")
    add("--window-s", type=float, default=86_400.0, help="how many seconds the server remembers a key")
    add("--fingerprint", choices=("checked", "ignored"), default="checked")
    add("--refusals", choices=("stored", "not-stored"), default="stored")
    add("--lookup", choices=("on", "off"), default="on", help="whether clients may look up effects")
    add("--key-header", default="Idempotency-Key")
    add("--fault", type=_fault, action="append", default=[], help='a fault to inject, as JSON: {"kind": "reset"}')
    add("--parent", type=int, help="exit when the process with this id is no longer the parent")
    return parser


def _fault(text: str) -> Fault:
    try:
        return parse_fault(json.loads(text))
    except (BadFault, ValueError) as error:
        raise argparse.ArgumentTypeError(str(error)) from error


if __name__ == "__main__":
    main()
