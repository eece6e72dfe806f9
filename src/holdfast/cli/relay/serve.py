"""`holdfast relay serve` and `holdfast relay invite`: what the operator of a relay does."""

from __future__ import annotations

import argparse
import json
import secrets
import sys
import time
from typing import TYPE_CHECKING

from holdfast.cli.input.agent_places import path_of
from holdfast.cli.screen.screen import print_fields, print_json, talk
from holdfast.errors import RelayUnfit

if TYPE_CHECKING:
    from holdfast.relay.server.serve import RunningRelay

NOTE_CHARS_MAX = 200


def run_serve(args: argparse.Namespace) -> int:
    from holdfast.host.log import open_log

    try:
        from holdfast.relay.server.serve import serve
        from holdfast.relay.server.settings import read_relay_settings
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] not in ("starlette", "uvicorn"):
            raise
        raise RelayUnfit(
            f"this installation of Holdfast cannot serve a relay: the package {error.name} is missing",
            hint="pip install 'holdfast[relay]'",
        ) from error
    folder = path_of(args.folder)
    settings = read_relay_settings(folder, listen=args.listen, url=args.url, registration=args.registration)
    serve(folder, settings, log=open_log(), started=lambda relay: _show(relay, as_json=args.json))
    return 0


def _show(relay: RunningRelay, *, as_json: bool) -> None:
    fields = {"address": relay.address, "key": relay.key, "did": f"did:key:{relay.key}", "listen": relay.listen}
    if as_json:
        print(json.dumps(fields), flush=True)
        return
    print_fields(list(fields.items()))
    sys.stdout.flush()  # a file or a pipe gets the address now, not when the relay ends
    talk("agents use the address: `holdfast init NAME --witness ADDRESS`, `holdfast relay add ADDRESS`")


def run_invite(args: argparse.Namespace) -> int:
    from holdfast.host.private_files import check_private_folder
    from holdfast.relay.server.registry import add_invite
    from holdfast.relay.server.store import FILE, open_store

    folder = path_of(args.folder)
    if not (folder / FILE).is_file():
        raise RelayUnfit(
            f"there is no relay in {folder}", hint="start it once: `holdfast relay serve --folder DIR` makes it"
        )
    check_private_folder(folder)
    token = secrets.token_urlsafe(24)
    db = open_store(folder)
    try:
        add_invite(db, token, note=args.note[:NOTE_CHARS_MAX], now=int(time.time()))
    finally:
        db.close()
    if args.json:
        print_json({"invite": token, "note": args.note[:NOTE_CHARS_MAX]})
    else:
        print(token)
    return 0
