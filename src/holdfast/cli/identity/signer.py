"""`holdfast identity signer`: keep the operational key in a process of its own."""

from __future__ import annotations

import argparse

from holdfast.cli.command import Commands, new_command


def add_verb(verbs: Commands) -> None:
    parser = new_command(
        verbs,
        "signer",
        run=run,
        summary="keep the operational key in a process of its own, behind a socket",
        purpose="Open the vault and answer a short list of acts at a Unix socket: certificates, "
        "answers, profiles, backup heads, and the keys that a worker reads its journal with. It "
        "never signs bytes that somebody gives it. Run it as another user than the agent's, with "
        "a home and a vault of its own, and name the agent's user with --allow; set "
        "[identity] signer in the agent's holdfast.toml to the socket. Serves until SIGTERM or "
        "Ctrl-C. See docs/how-to/keys.md.",
        examples=(
            "holdfast identity signer --home /var/lib/holdfast-signer/ada --allow ada",
            "holdfast identity signer --home ~/agents/ada --socket /run/user/1000/ada.sock",
        ),
    )
    parser.add_argument(
        "--home",
        metavar="DIR",
        help="the signer's folder of the agent: holdfast.toml and "
        "kel.jsonl (default: $HOLDFAST_HOME, else this folder)",
    )
    parser.add_argument(
        "--socket",
        metavar="PATH",
        help="where to answer (default: [identity] signer of the home's settings, else signer.sock in the home)",
    )
    parser.add_argument(
        "--allow",
        metavar="USER",
        action="append",
        default=[],
        help="a user, by name or number, who is answered beside the signer's own; may be repeated. "
        "The socket is given to the first one's group",
    )


def run(args: argparse.Namespace) -> int:
    import asyncio
    import os
    import sys
    from pathlib import Path

    from holdfast.app.worker_log import open_log
    from holdfast.errors import BadSettings
    from holdfast.identity.speaker.signer_process import harden, serve_signer
    from holdfast.identity.vault.vault import open_vault
    from holdfast.layout.agent_home import home_folder, load_home

    harden()
    home = load_home(home_folder(args.home))
    if home.vault is None:
        raise BadSettings(f"{home.settings_file} names no vault", hint="[identity] vault = ...")
    allowed = [_user(text) for text in args.allow]
    given = Path(os.path.abspath(args.socket)) if args.socket else None
    path = given or home.signer or home.folder / "signer.sock"
    ask = _asked if sys.stdin.isatty() else None
    vault = open_vault(home.vault, ask=ask)
    users = {os.geteuid(), *(user for user, _ in allowed)}
    group = next((group for user, group in allowed if user != os.geteuid()), None)
    asyncio.run(serve_signer(home, vault, path=path, users=users, group=group, log=open_log()))
    return 0


def _asked() -> str:
    import getpass
    import sys

    return getpass.getpass("passphrase of the vault: ", sys.stderr)


def _user(text: str) -> tuple[int, int]:
    """Number and main group of a user."""
    import pwd

    from holdfast.errors import BadInput

    try:
        found = pwd.getpwuid(int(text)) if text.isdecimal() else pwd.getpwnam(text)
        return found.pw_uid, found.pw_gid
    except KeyError:
        if text.isdecimal():
            return int(text), int(text)
        raise BadInput(f"there is no user {text!r} on this machine") from None
