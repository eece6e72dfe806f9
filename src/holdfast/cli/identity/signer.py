"""`holdfast identity signer`: keep the operational key in a separate process."""

from __future__ import annotations

import argparse

from holdfast.cli.command import Commands, add_list, new_verb
from holdfast.errors import BadInput, BadSettings


def add_verb(verbs: Commands) -> None:
    parser = new_verb(verbs, "signer", run).help("""keep the operational key in a separate process, behind a socket

        Open the vault and serve a Unix socket until SIGTERM or Ctrl-C. A client can ask for a certificate, a signed
        answer to a challenge, a profile, a backup head, or the keys that read the journal. The signer never signs
        bytes that a client sends. Run it as a different user from the agent, with its own home and vault; name the
        agent's user with --allow. In the agent's holdfast.toml, set `signer` under [identity] to the socket's path.
        See docs/how-to/keys.md.
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
        help="path of the socket (default: `signer` under [identity] in the home's holdfast.toml, "
        "else signer.sock in the home)",
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
    from holdfast.identity.speaker.signer_process import harden, serve_signer
    from holdfast.layout.agent_home import home_folder, load_home

    harden()
    home = load_home(home_folder(args.home))
    if home.vault is None:
        raise BadSettings(f"{home.settings_file} names no vault", hint="set `vault` under [identity] in that file")
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

    try:
        found = pwd.getpwuid(int(text)) if text.isdecimal() else pwd.getpwnam(text)
        return found.pw_uid, found.pw_gid
    except KeyError:
        if text.isdecimal():
            return int(text), int(text)
        raise BadInput(f"there is no user {text!r} on this machine") from None
