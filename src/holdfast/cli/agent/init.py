"""`holdfast init NAME`: a new agent, or an identity for one that has a journal already."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from holdfast.cli.command import Commands, add_json_option, new_command
from holdfast.cli.input.input_slots import add_slot_options


def add_parser(commands: Commands) -> None:
    parser = new_command(
        commands,
        "init",
        run=run,
        purpose=(
            "Make an agent: its folder, its identity, a vault with its keys, a second place for\n"
            "the next key, a witness, and 24 words for paper.\n\n"
            "The words are shown once, before anything exists that they could open. Whoever has\n"
            "them can evict every running copy of the agent; without them a lost machine is a\n"
            "lost identity. An agent that has a journal already keeps it: its keys move into the\n"
            "vault. A run that was cut short is finished by the same command."
        ),
        examples=(
            "holdfast init ada",
            "holdfast init ada --second /media/stick/ada",
            "holdfast init ada --second /srv/second/ada --unlock-file /run/secrets/ada \\\n"
            "    --second-passphrase-fd 3 --words-fd 4 3< passphrase 4>> /dev/shm/words",
        ),
    )
    parser.add_argument("name", metavar="NAME", help="small letters, digits, - and _")
    parser.add_argument("--home", metavar="DIR", help="the agent's folder (default: ./NAME)")
    add_identity_options(parser)
    add_json_option(parser)


def add_identity_options(parser: argparse.ArgumentParser) -> None:
    """Where the keys of a new agent lie, and how its words are shown."""
    parser.add_argument("--vault", metavar="DIR", help="default: ~/.config/holdfast/vault/NAME; never in the home")
    parser.add_argument(
        "--second", metavar="DIR", help="the place of the next key: on another disk, or of another user"
    )
    parser.add_argument(
        "--witness",
        metavar="DIR",
        action="append",
        default=[],
        help="a folder in which a witness is kept; repeat it: 3 bear one that is down, 4 one that "
        "lies (default: one, ~/.config/holdfast/witness/NAME)",
    )
    parser.add_argument(
        "--arbiter",
        metavar="DIR",
        help="the folder that says which copy of the agent may act (default: ~/.config/holdfast/arbiter/NAME)",
    )
    add_slot_options(parser, new=True)
    parser.add_argument(
        "--import-key",
        metavar="FILE",
        help="take this Ed25519 key (OpenSSH, or a raw seed) as the first operational key; it is "
        "weaker than a new one, because it existed elsewhere",
    )
    parser.add_argument(
        "--words-fd",
        metavar="N",
        help="write the 24 words to this descriptor instead of showing them; at a terminal they "
        "are copied by hand and typed back",
    )


def run(args: argparse.Namespace) -> int:
    from holdfast.cli.input.agent_places import path_of
    from holdfast.cli.screen.screen import print_fields, print_json, talk
    from holdfast.identity.acts.make_agent import check_name

    name = check_name(args.name)
    fields = make(args, name=name, home=path_of(args.home or name))
    if args.json:
        print_json(fields)
    else:
        print_fields([(key, value if isinstance(value, str) else "\n".join(value)) for key, value in fields.items()])
        talk("next: `holdfast paper print | lp`, then `holdfast paper verify`")
    return 0


def make(args: argparse.Namespace, *, name: str, home: Path) -> dict[str, str | list[str]]:
    """Make the agent as the identity options say; what there is then."""
    import asyncio
    import dataclasses

    from holdfast.cli.input.agent_places import default_place, default_witness, path_of, second_place, witnesses_of
    from holdfast.cli.input.input_slots import new_slots
    from holdfast.cli.screen.output_words import words_out
    from holdfast.cli.screen.screen import talk
    from holdfast.core.clock import SystemEntropy
    from holdfast.identity.acts.make_agent import AgentPlan, check_plan, make_agent
    from holdfast.identity.records.ed25519 import Sodium

    show = words_out(args.words_fd, name)
    vault = path_of(args.vault) if args.vault else default_place("vault", name)
    arbiter = path_of(args.arbiter) if args.arbiter else default_place("arbiter", name)
    plan = AgentPlan(
        name=name,
        folder=home,
        vault=vault,
        second=second_place(args.second, vault, name),
        witnesses=witnesses_of(args.witness) or (default_witness(name),),
        arbiter=str(arbiter),
        keys=(),
        second_keys=(),
        today=_today(),
    )
    check_plan(plan)
    imported = _imported(args.import_key)
    keys, second_keys = new_slots(args)
    plan = dataclasses.replace(plan, keys=keys, second_keys=second_keys, imported=imported)
    made = asyncio.run(make_agent(plan, show=show, entropy=SystemEntropy(), port=Sodium()))
    log = made.done.log
    if made.went_on:
        talk("an earlier run had made the vault: the words that it showed are the ones that count")
    if len(log.head.witnesses.members) == 1:
        talk("risk: one witness bears no loss; name three with --witness when you can")
    return {
        "name": name,
        "id": log.id,
        "home": str(plan.folder),
        "vault": str(plan.vault),
        "second": str(plan.second),
        "witnesses": [str(one) for one in plan.witnesses],
    }


def _imported(given: str | None):
    if given is None:
        return None
    from holdfast.cli.input.agent_places import path_of
    from holdfast.cli.screen.screen import talk
    from holdfast.identity.vault.import_key import read_key_file

    talk("risk: an imported key may have copies elsewhere; `holdfast identity rotate` soon")
    return read_key_file(path_of(given), _ask if sys.stdin.isatty() else None)


def _ask() -> str:
    from getpass import getpass

    return getpass("passphrase of the key file (not shown): ", stream=sys.stderr)


def _today() -> str:
    import datetime as dt

    return dt.datetime.now(dt.UTC).date().isoformat()
