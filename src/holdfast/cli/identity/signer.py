"""`holdfast identity signer`: keep the operational key in a separate process."""

from __future__ import annotations

import argparse

from holdfast.cli.command import Commands, add_list, new_verb


def add_verb(verbs: Commands) -> None:
    parser = new_verb(verbs, "signer", run).help("""keep the operational key in a separate process, behind a socket

        Open the vault and answer a short list of requests at a Unix socket: certificates, answers, profiles, backup
        heads, and the keys with which a worker reads its journal. It never signs bytes from a caller. Run it as
        another user than the agent, with its own home and vault, and name the agent's user with --allow. Set
        [identity] signer in the agent's holdfast.toml to the socket. Runs until SIGTERM or Ctrl-C. See
        docs/how-to/keys.md.
        examples:
          holdfast identity signer --home /var/lib/holdfast-signer/ada --allow ada
          holdfast identity signer --home ~/agents/ada --socket /run/user/1000/ada.sock
        """)
    parser.add_argument(
        "--home",
        metavar="DIR",
        help="the signer's folder for the agent, with holdfast.toml and "
        "kel.jsonl (default: $HOLDFAST_HOME, else this folder)",
    )
    parser.add_argument(
        "--socket",
        metavar="PATH",
        help="where to answer (default: [identity] signer of the home's settings, else signer.sock in the home)",
    )
    add_list(
        parser,
        "--allow",
        "USER",
        "a user, by name or number, that the signer answers in addition to its own; repeatable. "
        "The socket belongs to the first one's group",
    )


def run(args: argparse.Namespace) -> int:
    import asyncio
    import os
    from pathlib import Path

    from holdfast.app.worker import open_log
    from holdfast.cli.input.input_slots import open_existing
    from holdfast.errors import BadSettings
    from holdfast.identity.speaker.signer_process import harden, serve_signer
    from holdfast.layout.agent_home import home_folder, load_home

    harden()
    home = load_home(home_folder(args.home))
    if home.vault is None:
        raise BadSettings(f"{home.settings_file} names no vault", hint="[identity] vault = ...")
    allowed = [_user(text) for text in args.allow]
    given = Path(os.path.abspath(args.socket)) if args.socket else None
    path = given or home.signer or home.folder / "signer.sock"
    vault = open_existing(home.vault, "", None, what="the vault")
    users = {os.geteuid(), *(user for user, _ in allowed)}
    group = next((group for user, group in allowed if user != os.geteuid()), None)
    asyncio.run(serve_signer(home, vault, path=path, users=users, group=group, log=open_log()))
    return 0


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
