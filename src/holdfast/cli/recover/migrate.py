"""`holdfast migrate export|import|cancel`: move an agent to another host, planned."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from holdfast.cli.command import Commands, add_json_option, add_verbs, new_command

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.identity.vault.vault import Vault
    from holdfast.layout.agent_home import AgentHome
    from holdfast.recovery.move_in import MoveMeans


def add_parser(commands: Commands) -> None:
    parser = new_command(
        commands,
        "migrate",
        run=None,
        purpose=(
            "Move an agent to another host: it stops here, travels in one sealed file, and goes\n"
            "on there. No task becomes suspect, because nothing is lost; at no instant can both\n"
            "copies run. For a host that is gone there is `holdfast recover`."
        ),
        examples=(
            "holdfast migrate export ada.move --home ada",
            "holdfast migrate import ada.move --home ada --vault ~/.config/holdfast/vault/ada",
            "holdfast migrate cancel --home ada",
        ),
    )
    verbs = add_verbs(parser)
    _add_export(verbs)
    _add_import(verbs)
    _add_cancel(verbs)


def _add_export(verbs: Commands) -> None:
    parser = new_command(
        verbs,
        "export",
        run=run_export,
        summary="stop the agent here and write its package",
        purpose=(
            "Stop the agent and write it into one sealed file. Workers end their calls and stop;\n"
            "from then on this copy refuses to run. The file opens with the agent's vault, or\n"
            "with its paper. A run that was cut short is taken up by the same command."
        ),
        examples=("holdfast migrate export ada.move", "holdfast migrate export ada.move --json"),
    )
    parser.add_argument("package", metavar="FILE", help="the package; outside the agent's folder")
    _add_home(parser)
    parser.add_argument(
        "--wait",
        type=float,
        default=60.0,
        metavar="S",
        help="seconds for workers and other programs to let go of the journal (60)",
    )
    _add_passphrase(parser)
    add_json_option(parser)


def _add_import(verbs: Commands) -> None:
    parser = new_command(
        verbs,
        "import",
        run=run_import,
        summary="take a package as the agent of this host",
        purpose=(
            "Take a package: unseal it with the vault, compare every byte with what was signed,\n"
            "take over the lease, and put the agent's folder in its place. The vault is brought\n"
            "here by a person first, or made again from paper. A package is taken once."
        ),
        examples=("holdfast migrate import ada.move --home ada --vault ~/.config/holdfast/vault/ada",),
    )
    parser.add_argument("package", metavar="FILE", help="as `migrate export` wrote it")
    _add_home(parser)
    parser.add_argument("--vault", metavar="DIR", required=True, help="the agent's vault, here")
    parser.add_argument("--second", metavar="DIR", help="the place of the next key, here")
    parser.add_argument("--arbiter", metavar="DIR", help="the arbiter's folder, here")
    parser.add_argument("--witness", metavar="DIR", action="append", help="a witness's folder, here; repeat it")
    _add_passphrase(parser)
    add_json_option(parser)


def _add_cancel(verbs: Commands) -> None:
    parser = new_command(
        verbs,
        "cancel",
        run=run_cancel,
        summary="give up a move: the agent runs on here",
        purpose=(
            "Give up a move. Before the package is whole nothing has happened. Afterwards a\n"
            "person says that nobody has taken it: an arbiter hears of copies on its own machine\n"
            "only. Open tasks become suspect: looked up or parked before anything is sent."
        ),
        examples=("holdfast migrate cancel", "holdfast migrate cancel --nobody-has-it"),
    )
    _add_home(parser)
    parser.add_argument(
        "--nobody-has-it", action="store_true", help="the package is destroyed, and the agent runs nowhere else"
    )
    _add_passphrase(parser)
    add_json_option(parser)


def run_export(args: argparse.Namespace) -> int:
    import asyncio

    from holdfast.cli.screen.screen import talk
    from holdfast.core.clock import SystemClock, SystemEntropy
    from holdfast.identity.records.ed25519 import Sodium
    from holdfast.recovery.move_out import MoveOut

    home = _home(args)
    with _vault(args, _vault_of(home)) as vault:
        move = MoveOut(
            home, vault, clock=SystemClock(), entropy=SystemEntropy(), port=Sodium(), say=talk, wait_s=args.wait
        )
        done = asyncio.run(move.run(_path(args.package)))
    _say(args, done)
    if not args.json:
        talk(f"next, on the other host: `holdfast migrate import {done.package} ...`")
        talk("risk: take the package on one host only, and destroy copies of it")
    return 0


def run_import(args: argparse.Namespace) -> int:
    import asyncio

    from holdfast.cli.input.agent_places import witnesses_of
    from holdfast.cli.screen.screen import talk
    from holdfast.errors import MoveRefused
    from holdfast.layout.agent_home import home_folder, root_folder
    from holdfast.recovery.move_in import HostPaths, move_in

    root = root_folder(args.home)
    if home_folder(args.home) != root:
        raise MoveRefused(
            f"{root} is the folder of an adopted agent, and no package is of one", hint="give --home another folder"
        )
    here = HostPaths(
        second=str(_path(args.second)) if args.second else "",
        arbiter=str(_path(args.arbiter)) if args.arbiter else "",
        witnesses=witnesses_of(args.witness or ()),
    )
    with _vault(args, _path(args.vault)) as vault:
        done = asyncio.run(move_in(_path(args.package), home_folder(args.home), _means(vault), here=here))
    _say(args, done)
    if not args.json:
        talk("next: `holdfast worker APP` here; the agent goes on where it was")
    return 0


def run_cancel(args: argparse.Namespace) -> int:
    import asyncio

    from holdfast.recovery.move_in import cancel_move

    home = _home(args)
    with _vault(args, _vault_of(home)) as vault:
        done = asyncio.run(cancel_move(home, _means(vault), sure=args.nobody_has_it))
    _say(args, done)
    return 0


def _add_home(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--home", metavar="DIR", help="the agent's folder (default: $HOLDFAST_HOME, else this one)")


def _add_passphrase(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--passphrase-fd", metavar="N", help="read the vault's passphrase from this descriptor")


def _home(args: argparse.Namespace) -> AgentHome:
    from holdfast.layout.agent_home import home_folder, load_home

    return load_home(home_folder(args.home))


def _vault_of(home: AgentHome) -> Path:
    from holdfast.errors import BadSettings

    if home.vault is None:
        raise BadSettings(f"{home.settings_file} names no vault", hint="`holdfast init` makes an identity")
    return home.vault


def _vault(args: argparse.Namespace, folder: Path) -> Vault:
    from getpass import getpass

    from holdfast.cli.input.input_slots import read_line
    from holdfast.identity.vault.slots import passphrase_key
    from holdfast.identity.vault.vault import open_vault

    if args.passphrase_fd is not None:
        text = read_line("--passphrase-fd", args.passphrase_fd)
        return open_vault(folder, given=passphrase_key(text))
    ask = (lambda: getpass("passphrase of the vault: ", sys.stderr)) if sys.stdin.isatty() else None
    return open_vault(folder, ask=ask)


def _means(vault: Vault) -> MoveMeans:
    from holdfast.core.clock import SystemClock, SystemEntropy
    from holdfast.identity.records.ed25519 import Sodium
    from holdfast.recovery.move_in import MoveMeans

    return MoveMeans(vault=vault, clock=SystemClock(), entropy=SystemEntropy(), port=Sodium())


def _path(text: str) -> Path:
    from holdfast.cli.input.agent_places import path_of

    return path_of(text)


def _say(args: argparse.Namespace, done: object) -> None:
    import msgspec

    from holdfast.cli.screen.screen import print_fields, print_json

    fields: dict[str, object] = msgspec.to_builtins(done)
    if args.json:
        print_json(fields)
    else:
        print_fields([(name.replace("_", " "), str(value)) for name, value in fields.items()])
