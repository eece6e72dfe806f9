"""`holdfast init NAME`: a new agent, or an identity for one that has a journal already."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.cli.command import Commands, add_list, add_options, add_witnesses, new_command
from holdfast.cli.input.input_slots import add_slot_options
from holdfast.cli.screen.screen import print_fields, print_json, talk
from holdfast.errors import BadInput, HoldfastError

if TYPE_CHECKING:
    from holdfast.identity.acts.make_agent import AgentPlan
    from holdfast.identity.paper.phrase import Phrase
    from holdfast.layout.agent_home import AgentHome
    from holdfast.layout.witness_address import WitnessRelay

RELAYS_ASKED = 3


def add_parser(commands: Commands) -> None:
    parser = new_command(commands, "init", run).help("""
        Make an agent: its folder, its identity, a vault with its keys, a second place for the next key, a witness,
        and 24 recovery words to write on paper.

        Holdfast shows the words once, before it makes anything that they could open. Anyone who has them can evict
        every running copy of the agent. Without them, a lost machine is a lost identity. An agent that already has
        a journal keeps it; its keys move into the vault. If a run is interrupted, or a relay refuses the invite, run
        the same command again to finish it: it shows no words a second time once the agent is made.
        examples:
          holdfast init ada
          holdfast init ada --second /media/stick/ada
          holdfast init ada --relay https://relay.example#z6Mk... --invite invite.txt
          holdfast init ada --second /srv/second/ada --unlock-file /run/secrets/ada \\
            --second-passphrase-fd 3 --words-fd 4 3< passphrase 4>> /dev/shm/words
        """)
    parser.add_argument("name", metavar="NAME", help="the agent's name: small letters, digits, - and _")
    parser.add_argument("--home", metavar="DIR", help="the agent's folder (default: ./NAME)")
    add_identity_options(parser)
    add_options(parser, "--json")


def add_identity_options(parser: argparse.ArgumentParser) -> None:
    """Where the keys of a new agent are, and how its words are shown."""
    parser.add_argument(
        "--vault",
        metavar="DIR",
        help="folder for the secret keys, outside the agent's folder (default: ~/.config/holdfast/vault/NAME)",
    )
    add_options(parser, "--second")
    add_witnesses(
        parser,
        "--witness",
        "a witness; repeatable: 3 tolerate one offline, 4 tolerate one that lies "
        "(default: one, the folder ~/.config/holdfast/witness/NAME)",
    )
    add_list(
        parser,
        "--relay",
        "ADDRESS",
        "a relay where others reach the agent: https://HOST#z6Mk...; repeatable, three of three operators are best",
    )
    add_options(parser, "--invite")
    parser.add_argument(
        "--arbiter",
        metavar="DIR",
        help="the folder that decides which copy of the agent may act (default: ~/.config/holdfast/arbiter/NAME), or "
        "`journal` where several hosts share a journal in PostgreSQL (the default there)",
    )
    add_slot_options(parser, new=True)
    parser.add_argument(
        "--import-key",
        metavar="FILE",
        help="use this Ed25519 key (OpenSSH, or a raw seed) as the first operational key; it is "
        "weaker than a new one, because it existed elsewhere",
    )
    parser.add_argument(
        "--words-fd",
        metavar="N",
        help="write the 24 words to this descriptor (default: at a terminal, you copy them by hand and type them back)",
    )


def run(args: argparse.Namespace) -> int:
    from holdfast.cli.input.agent_places import path_of
    from holdfast.identity.acts.make_agent import check_name

    name = check_name(args.name)
    fields = make(args, name=name, home=path_of(args.home or name))
    if args.json:
        print_json(fields)
    else:
        shown = [(key, value if isinstance(value, str) else "\n".join(value)) for key, value in fields.items()]
        print_fields([(key, text) for key, text in shown if text])
        talk("next: `holdfast paper print | lp`, then `holdfast paper verify`")
    return 0


def make(args: argparse.Namespace, *, name: str, home: Path) -> dict[str, str | list[str]]:
    """Make the agent as the identity options say; its fields."""
    from holdfast.cli.input.agent_places import default_place, default_witness, path_of, second_place, witnesses_of
    from holdfast.cli.screen.output_words import words_out
    from holdfast.identity.acts.make_agent import AgentPlan
    from holdfast.identity.acts.paper_sheets import today
    from holdfast.identity.files.public_file import read_identity
    from holdfast.journal.bind import journal_at
    from holdfast.layout.agent_home import BY_JOURNAL, load_home
    from holdfast.layout.journal_location import journal_in
    from holdfast.layout.witness_address import relays_of

    show = words_out(args.words_fd, name)
    vault = path_of(args.vault) if args.vault else default_place("vault", name)
    shared = journal_at(journal_in(home)).hosts
    arbiter = args.arbiter or (BY_JOURNAL if shared else str(default_place("arbiter", name)))
    second = second_place(args.second, vault, name)
    relays = _relays(args)
    invites = args.invite if relays_of(witnesses_of(args.witness)) else ()
    plan = AgentPlan(
        name=name,
        folder=home,
        vault=vault,
        second=second,
        witnesses=witnesses_of(args.witness, invites) or (default_witness(name),),
        arbiter=arbiter if arbiter == BY_JOURNAL else str(path_of(arbiter)),
        keys=(),
        second_keys=(),
        today=today(),
    )
    if not lacks_relays(home, relays) or load_home(home).settings.identity != plan.settings():
        _make_agent(args, plan, relays, show)
    if relays:
        _register(load_home(home), relays)
    return {
        "name": name,
        "id": read_identity(load_home(home).identity_file).id,
        "home": str(plan.folder),
        "vault": str(plan.vault),
        "second": str(plan.second),
        "witnesses": [str(one) for one in plan.witnesses],
        "relays": [str(one) for one in relays],
    }


def lacks_relays(home: Path, relays: Sequence[object]) -> bool:
    """Whether an earlier run has made the agent here, and could not register it at these relays."""
    from holdfast.identity.acts.make_agent import find_whole
    from holdfast.layout.agent_home import load_home
    from holdfast.relay.client.profile import find_own_profile

    return bool(relays) and find_whole(home) and find_own_profile(load_home(home)) is None


def _make_agent(
    args: argparse.Namespace, plan: AgentPlan, relays: Sequence[WitnessRelay], show: Callable[[Phrase], None]
) -> None:
    import asyncio

    from holdfast.cli.input.input_slots import new_slots
    from holdfast.core.clock import SystemEntropy
    from holdfast.identity.acts.make_agent import check_plan, make_agent
    from holdfast.identity.records.ed25519 import Sodium
    from holdfast.identity.witness.open_witnesses import check_new_relays

    check_plan(plan)
    if relays:
        asyncio.run(check_new_relays(relays, port=Sodium()))  # before the words: nobody copies them for nothing
    imported = _imported(args.import_key)
    keys, second_keys = new_slots(args)
    plan = replace(plan, keys=keys, second_keys=second_keys, imported=imported)
    made = asyncio.run(make_agent(plan, show=show, entropy=SystemEntropy(), port=Sodium()))
    if made.went_on:
        talk("an earlier run made the vault: only the words that the earlier run showed are valid")
    if len(made.done.log.head.witnesses.members) == 1:
        talk(
            "note: there is only one witness; if you lose it, you cannot change keys. With three witnesses "
            "(give --witness three times), you may lose one"
        )


def _register(home: AgentHome, relays: Sequence[WitnessRelay]) -> None:
    """Nothing is signed before all of them have let the agent in; so a run that fails here can be repeated."""
    from holdfast.cli.relay.agent import registered

    try:
        done = registered(home, relays)
    except (HoldfastError, OSError):
        talk(
            "the agent is made, and its recovery words are valid; it is not registered at its relays: run the same "
            "command again, with another --invite if a relay refuses this one"
        )
        raise
    for url, why in done.said.items():
        if why:
            talk(f"warning: {url} does not have the profile yet: {why}; a worker of the agent publishes it")


def _relays(args: argparse.Namespace) -> tuple[WitnessRelay, ...]:
    """As given, or as a person answers."""
    from holdfast.cli.input.agent_places import witnesses_of
    from holdfast.cli.input.terminal import ask_line
    from holdfast.layout.witness_address import relays_of

    given = list(args.relay)
    if not given and args.second is None and sys.stdin.isatty():
        talk("Other agents reach this one through relays. Three of three operators are best; you can add them later.")
        while len(given) < RELAYS_ASKED:
            answer = ask_line("address of a relay [none]: ").strip()
            if not answer:
                break
            given.append(answer)
    found = relays_of(witnesses_of(given, args.invite)) if given else ()
    if len(found) != len(set(given)):
        raise BadInput("--relay: one of them is not the address of a relay", hint="https://relay.example#z6Mk...")
    return found


def _imported(given: str | None):
    if given is None:
        return None
    from holdfast.cli.input.agent_places import path_of
    from holdfast.identity.vault.import_key import read_key_file

    talk("risk: an imported key may have copies elsewhere; run `holdfast identity rotate` soon")
    return read_key_file(path_of(given), _ask if sys.stdin.isatty() else None)


def _ask() -> str:
    from getpass import getpass

    return getpass("passphrase of the key file (not shown): ", stream=sys.stderr)
