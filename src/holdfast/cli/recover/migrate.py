"""`holdfast migrate export|import|cancel`: move an agent to another host."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from holdfast.cli.command import Commands, acting_home, add_flag, add_options, add_witnesses, new_noun, new_verb
from holdfast.cli.screen.screen import print_json, print_result, talk
from holdfast.errors import BadSettings, MoveRefused

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.identity.vault.vault import Vault
    from holdfast.layout.agent_home import AgentHome
    from holdfast.recovery.move_lease import MoveMeans


def add_parser(commands: Commands) -> None:
    verbs = new_noun(commands, "migrate").help("""
        Move an agent to another host: it stops here, travels in one sealed file, and resumes there. Nothing is
        lost, so no task is in doubt; both copies can never run at the same time. If the old host is lost, use
        `holdfast recover`.
        examples:
          holdfast migrate export ada.move --home ada
          holdfast migrate import ada.move --home ada --vault ~/.config/holdfast/vault/ada
          holdfast migrate cancel --home ada
        """)
    parser = new_verb(verbs, "export", run_export).help("""stop the agent here and write its package

        Stop the agent and write it into one sealed file. Workers finish their calls and stop; from then on this
        copy refuses to run. The agent's vault, or its recovery words, open the file. If a run is interrupted, run
        the same command again to finish it.
        examples:
          holdfast migrate export ada.move
          holdfast migrate export ada.move --json
        """)
    parser.add_argument("package", metavar="FILE", help="where to write the package; outside the agent's folder")
    add_options(parser, "--home")
    parser.add_argument(
        "--wait",
        type=float,
        default=60.0,
        metavar="S",
        help="seconds to wait for workers and other programs to close the journal (default: 60)",
    )
    add_options(parser, "--passphrase-fd", "--json")
    parser = new_verb(verbs, "import", run_import).help("""install a package on this host

        Install a package: open it with the vault, compare every byte with what was signed, take over the lease, and
        write the agent's folder. Copy the vault here first, or make it again from the recovery words. A package can
        be installed only once.
        examples:
          holdfast migrate import ada.move --home ada --vault ~/.config/holdfast/vault/ada
        """)
    parser.add_argument("package", metavar="FILE", help="the package that `migrate export` wrote")
    add_options(parser, "--home")
    parser.add_argument("--vault", metavar="DIR", required=True, help="the agent's vault on this host")
    parser.add_argument("--second", metavar="DIR", help="where the next key is kept on this host")
    parser.add_argument("--arbiter", metavar="DIR", help="the arbiter's folder on this host")
    add_witnesses(parser, "--witness", "an existing witness, where it is on this host; repeatable")
    add_options(parser, "--passphrase-fd", "--json")
    parser = new_verb(verbs, "cancel", run_cancel).help("""cancel a move: the agent stays here

        Cancel a move. Before the package is complete, nothing has happened. Afterwards you must confirm that the
        package was not installed anywhere: an arbiter knows only of copies on its own machine. Open tasks are then
        in doubt: Holdfast looks up or parks their effects before it sends anything.
        examples:
          holdfast migrate cancel
          holdfast migrate cancel --nobody-has-it
        """)
    add_options(parser, "--home")
    add_flag(parser, "--nobody-has-it", "you confirm: the package is destroyed, and the agent runs nowhere else")
    add_options(parser, "--passphrase-fd", "--json")


def run_export(args: argparse.Namespace) -> int:
    import asyncio

    from holdfast.cli.input.agent_places import path_of
    from holdfast.recovery.move_out import MoveOut

    home = acting_home(args)
    with open_vault_of(args, checked_vault_of(home)) as vault:
        move = MoveOut(home, move_means(vault), say=talk, wait_s=args.wait)
        done = asyncio.run(move.run(path_of(args.package)))
    _say(args, done)
    if not args.json:
        talk(f"next, on the other host: `holdfast migrate import {done.package} ...`")
        talk("risk: install the package on one host only, and destroy all copies of it")
    return 0


def run_import(args: argparse.Namespace) -> int:
    import asyncio

    from holdfast.cli.input.agent_places import path_of, witnesses_of
    from holdfast.layout.agent_home import home_folder, root_folder
    from holdfast.recovery.move_in import HostPaths, move_in

    root = root_folder(args.home)
    if home_folder(args.home) != root:
        raise MoveRefused(
            f"{root} is the folder of an adopted agent; a package cannot be installed there",
            hint="give another folder with --home",
        )
    here = HostPaths(
        second=str(path_of(args.second)) if args.second else "",
        arbiter=str(path_of(args.arbiter)) if args.arbiter else "",
        witnesses=witnesses_of(args.witness or ()),
    )
    with open_vault_of(args, path_of(args.vault)) as vault:
        done = asyncio.run(move_in(path_of(args.package), home_folder(args.home), move_means(vault), here=here))
    _say(args, done)
    if not args.json:
        talk("next: `holdfast worker APP` here; the agent resumes its tasks")
    return 0


def run_cancel(args: argparse.Namespace) -> int:
    import asyncio

    from holdfast.app.instances.roster_change import RosterChange
    from holdfast.journal.bind import journal_at
    from holdfast.recovery.move_in import MoveCancelled, cancel_move
    from holdfast.recovery.promote import is_left_waiting, taken_back

    home = acting_home(args)
    with open_vault_of(args, checked_vault_of(home)) as vault:
        means = move_means(vault)
        change = RosterChange.at(home, vault, clock=means.clock, entropy=means.entropy, port=means.port)
        if is_left_waiting(change):  # an earlier run was killed: nothing else is left to undo
            incarnation = journal_at(home.journal).incarnation()
            done = MoveCancelled(home=str(home.folder), incarnation=incarnation, suspect=0, package="")
        else:
            done = asyncio.run(cancel_move(home, means, sure=args.nobody_has_it))
        taken_back(change)
    _say(args, done)
    return 0


def checked_vault_of(home: AgentHome) -> Path:
    """The vault of an agent that shall leave, stay, or change who may act. Raises KeysReplaced where a witness or a
    place shows that its keys were replaced; those that do not answer stop nothing. A promotion that was begun looks by
    itself: its new keys may be published before this folder has them. A journal that hosts share tells it better."""
    import asyncio

    from holdfast.app.eviction import check_at_start
    from holdfast.host.log import Log
    from holdfast.journal.bind import journal_at
    from holdfast.layout.moved import find_standby

    if home.vault is None:
        raise BadSettings(f"{home.settings_file} has no setting `vault`", hint="`holdfast init` makes a vault")
    mark = find_standby(home.instance)
    if not journal_at(home.journal).hosts and (mark is None or mark.promoting is None):
        asyncio.run(check_at_start(home.journal, notices=None, log=Log()))
    return home.vault


def open_vault_of(args: argparse.Namespace, folder: Path) -> Vault:
    from holdfast.cli.input.input_slots import open_existing

    return open_existing(folder, "--passphrase-fd", args.passphrase_fd, what="the vault")


def move_means(vault: Vault) -> MoveMeans:
    from holdfast.core.clock import SystemClock, SystemEntropy
    from holdfast.identity.records.ed25519 import Sodium
    from holdfast.recovery.move_lease import MoveMeans

    return MoveMeans(vault=vault, clock=SystemClock(), entropy=SystemEntropy(), port=Sodium(), say=talk)


def _say(args: argparse.Namespace, done: object) -> None:
    import msgspec

    fields: dict[str, object] = msgspec.to_builtins(done)
    if args.json:
        print_json(fields)
    else:
        fields.pop("relays", None)  # those that lack the head were named already
        print_result(fields)
