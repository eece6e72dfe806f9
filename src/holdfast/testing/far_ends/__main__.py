"""Run one of them by hand: `python -m holdfast.testing.far_ends payments --port 8451`.

It takes the credential that it accepts from a file (`--key-file`) and prints one line of JSON when it is ready.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
from pathlib import Path

from holdfast.testing.far_ends.issues import IssueHost
from holdfast.testing.far_ends.mail_api import MailProvider
from holdfast.testing.far_ends.objects import ObjectStore
from holdfast.testing.far_ends.payments import PaymentProvider
from holdfast.testing.far_ends.smtp import SmtpTrouble, SubmissionServer
from holdfast.testing.far_ends.web import Trouble, WebFarEnd


def main() -> None:
    options = _parser().parse_args()
    asyncio.run(_serve(options))


async def _serve(options: argparse.Namespace) -> None:
    far_end = _made(options.kind, options.key_file.read_text().strip() if options.key_file else "", options.trouble)
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await far_end.start(options.port)
    print(json.dumps({"kind": options.kind, "port": far_end.port, "pid": os.getpid()}), flush=True)
    await stop.wait()


def _made(kind: str, key: str, troubles: list[Trouble]) -> WebFarEnd | SubmissionServer:
    if kind == "smtp":
        user, _, password = key.partition(" ")
        server = SubmissionServer(user=user, password=password)
        server.troubles += [_at_the_dot(one) for one in troubles]
        return server
    far_end = _made_for_web(kind, key)
    far_end.troubles += troubles
    return far_end


def _at_the_dot(trouble: Trouble) -> SmtpTrouble:
    if trouble.kind in ("lose", "reset"):
        return SmtpTrouble(trouble.kind)
    return SmtpTrouble("dot", trouble.status)


def _made_for_web(kind: str, key: str) -> WebFarEnd:
    match kind:
        case "issues":
            return IssueHost(token=key)
        case "mail":
            return MailProvider(key=key)
        case "objects":
            access_key, secret_key = key.split()
            return ObjectStore(access_key=access_key, secret_key=secret_key)
        case _:
            return PaymentProvider(key=key)


def _trouble(word: str) -> Trouble:
    kind, _, status = word.partition(":")
    match kind:
        case "reset" | "refuse" | "lose" | "after":
            return Trouble(kind, int(status or 500))
        case _:
            raise argparse.ArgumentTypeError(f"{word!r}: reset, refuse:STATUS, lose, after:STATUS")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m holdfast.testing.far_ends", description=__doc__)
    parser.add_argument("kind", choices=("payments", "objects", "issues", "mail", "smtp"))
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one (default)")
    parser.add_argument("--key-file", type=Path, help="a file with the credential it accepts")
    parser.add_argument(
        "--trouble",
        type=_trouble,
        action="append",
        default=[],
        help="what happens to the next effect: reset, refuse:STATUS, lose, after:STATUS",
    )
    return parser


if __name__ == "__main__":
    main()
