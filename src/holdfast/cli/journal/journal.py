"""`holdfast journal`: what keeps the tasks, and moving it between a file and PostgreSQL."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.cli.command import Commands, add_options, new_noun, new_verb, over_journal
from holdfast.cli.screen.screen import print_fields, print_json, print_lines, talk

if TYPE_CHECKING:
    from holdfast.app.holdfast import Holdfast

WORD = "move"


def add_parser(commands: Commands) -> None:
    verbs = new_noun(commands, "journal").help("""
        The journal keeps the tasks of an agent: a file, or a schema of a PostgreSQL database. These verbs are about the
        journal as a whole.
        examples:
          holdfast journal show
          holdfast journal copy --to postgresql://ada@db.example.org/agents
        """)
    parser = new_verb(verbs, "show", over_journal(_show)).help("""what it is, and how durable

        Show where the journal is, what keeps it, what a commit survives, how far it has come, its tasks and its
        workers. Works while workers run.
        examples:
          holdfast journal show
          holdfast journal show --journal postgresql://ada@db.example.org/agents --json
        """)
    add_options(parser, "--journal", "--home", "--json")
    parser = new_verb(verbs, "copy", run_copy).help("""move it between a file and PostgreSQL

        Move the journal to another address: from a file into an empty schema of a PostgreSQL database, or back into a
        new file. Stop every worker first. Holdfast checks the journal, copies it, compares every row, and then renames
        the old one, so that nothing can run on both. It deletes nothing. Tasks keep their ids: a request that you
        submit again finds its task. The settings of the folder (`url` in [journal]) then name the new address.

        Tables of Transactional tools do not move: Holdfast names them.
        examples:
          holdfast journal copy --to postgresql://ada@db.example.org/agents
          holdfast journal copy --home ~/agents/ada --to 'postgresql://ada@db.example.org/agents?schema=ada' --yes
          holdfast journal copy --to journal.db
        """)
    parser.add_argument(
        "--to",
        metavar="ADDRESS",
        required=True,
        help="where to: postgresql://USER@HOST/DATABASE without a password, or a new file in the journal's folder",
    )
    add_options(parser, "--journal", "--home", "--json", "--dry-run", "--yes")
    parser = new_verb(verbs, "check", run_check).help("""check all of it

        Check every record, chain, seal and row of the journal, the running total over all tasks, and whether it is as
        new as what this machine has seen of it. Changes nothing, and works while workers run. Exits with 6 if something
        is damaged or missing.
        examples:
          holdfast journal check
          holdfast journal check --home ~/agents/ada --json
        """)
    add_options(parser, "--journal", "--home", "--json")


async def _show(hf: Holdfast, args: argparse.Namespace) -> int:
    from holdfast.cli.input.input_journal import journal_of
    from holdfast.journal.bind import journal_at

    address, journal = journal_of(args), hf.journal
    admin = journal_at(address)
    newest = admin.newest_record()
    tasks = {state.value: count for state, count in (await journal.count_tasks()).items()}
    durability = await journal.find_durability(provider=hf.settings.journal_durability == "provider")
    workers = sum(one.alive for one in await journal.list_sessions())
    if args.json:
        fields = {"journal": str(address), "journal_id": journal.journal_id, "engine": admin.engine}
        numbers = {"incarnation": journal.incarnation, "sequence": newest, "tasks": tasks, "workers": workers}
        print_json({**fields, **numbers, "durability": durability.kept, "durability_text": durability.text})
        return 0
    print_fields(
        [
            ("journal", str(address)),
            ("id", journal.journal_id),
            ("kept by", admin.engine),
            ("durability", durability.text),
            ("incarnation", str(journal.incarnation)),
            ("records", f"up to number {newest}"),
            ("tasks", ", ".join(f"{count} {state}" for state, count in tasks.items()) or "none"),
            ("workers", f"{workers} alive"),
        ]
    )
    if durability.hint:
        talk(f"hint: {durability.hint}")
    return 0


def run_copy(args: argparse.Namespace) -> int:
    import asyncio

    from holdfast.cli.input.input_journal import journal_of
    from holdfast.cli.input.terminal import confirm
    from holdfast.core.journal_address import is_url
    from holdfast.layout.journal_location import journal_address
    from holdfast.recovery.copy_journal import copy_journal

    source = journal_of(args)
    target = journal_address(args.to, home=str(source.folder) if is_url(args.to) else None)
    tell = _silence if args.json else talk
    done = asyncio.run(copy_journal(source, target, dry_run=True, tell=tell))
    if not args.dry_run:
        confirm(WORD, f"the journal {source} moves to {target}, and the old one gets another name", yes=args.yes)
        done = asyncio.run(copy_journal(source, target, arbiter=_arbiter_of(source.folder), tell=tell))
    if args.json:
        print_json(done)
        return 0
    if not done.done:
        print(f"would move journal {done.journal_id}, up to record {done.sequence}, to {target}")
        return 0
    print(f"moved journal {done.journal_id}, up to record {done.sequence}, to {target}: every row is equal", flush=True)
    talk(f"the old one is now {done.kept}; remove it when you have a backup of the new one")
    for table in done.tables_left:
        talk(f"WARNING: the table {table} of a Transactional tool was not moved: move it yourself before you start")
    talk(f"next: holdfast worker APP --home {shlex.quote(str(source.folder))}")
    return 0


def _arbiter_of(folder: Path) -> str:
    """The usual folder of an arbiter, for the agent in this folder."""
    from holdfast.cli.input.agent_places import default_place
    from holdfast.layout.agent_home import peek_home

    home = peek_home(folder)
    return "" if home is None else str(default_place("arbiter", home.name))


def _silence(_: str) -> None:
    """With --json, standard error has nothing but an error."""


def run_check(args: argparse.Namespace) -> int:
    from holdfast.app.binder import KEYS
    from holdfast.cli.input.input_journal import journal_of
    from holdfast.core.clock import SystemEntropy
    from holdfast.errors import EXIT_JOURNAL, NotAJournal
    from holdfast.identity.journal_keys.keyfile import load_or_create
    from holdfast.journal.bind import journal_at

    address = journal_of(args)
    admin = journal_at(address)
    if not admin.exists():
        admin.check_not_lost()
        raise NotAJournal(
            f"there is no journal at {address}",
            hint="name it with --journal or --home; `holdfast worker APP` makes one",
        )
    journal_id = admin.peek()
    keys = load_or_create(address.folder / KEYS, journal_exists=True, entropy=SystemEntropy())
    older, damage, newest = admin.find_older(), admin.find_damage(keys), admin.newest_record()
    findings = [f"this is an older copy: {older}", *damage] if older else damage
    if args.json:
        print_json({"journal": str(address), "journal_id": journal_id, "sequence": newest, "findings": findings})
    elif findings:
        print_lines(*findings)
        topic = "restore-an-older-journal" if older else "disk-full-and-damage"
        talk(f"hint: see `holdfast explain {topic}`")
    else:
        print(f"{address}: every record up to number {newest}, every chain and every seal is right")
    return EXIT_JOURNAL if findings else 0
