"""`holdfast recover`: the command for 3 a.m., and the one that is printed on the sheet."""

from __future__ import annotations

import argparse

from holdfast.cli.command import Commands, add_flag, add_list, add_options, add_witnesses, new_command
from holdfast.cli.input.input_sheet import add_words_options
from holdfast.cli.input.input_slots import add_slot_options
from holdfast.core.journal_address import is_url
from holdfast.errors import BadInput


def add_parser(commands: Commands) -> None:
    parser = new_command(commands, "recover", run).help("""
        Restore an agent on a new machine, from the words of its recovery sheet (or shares) and one place with its
        backups.

        Holdfast restores the newest snapshot that any place knows of, and compares every byte with what the agent
        signed. If it is damaged in one place, Holdfast uses another place. If no place has all of it undamaged,
        Holdfast takes each file from where it is undamaged. If a file is damaged everywhere, Holdfast uses the newest
        good snapshot and reports what is lost. The id does not change. Holders of the old keys are
        locked out. Every open task is then in doubt: Holdfast looks up, by effect key, what the task may have done
        after the snapshot, or parks it for a person. It repeats nothing on a guess. If the folder exists, Holdfast
        keeps the old one next to it. If a run is interrupted, run the same command again to finish it.

        With no place, only the identity is recovered: the sheet and a card (--card), or the sheet and one relay that
        has the key log (--witness), are enough.

        With --keep-keys, the vault at --vault was not lost, and no keys change.

        With --rescue-key and --to, you need no words, and no keys change: Holdfast unpacks a copy whose files and
        journal you can read. A rescue key signs nothing, and no worker runs in such a copy.

        An agent whose journal was in PostgreSQL gets it back as a file in its folder; no database is needed. With
        --place and --journal URL, Holdfast puts it into the database at URL, which must have no journal yet. If the
        database still has this agent's journal, Holdfast continues with that one instead of the copy.

        With --journal and no --place, no agent is restored. You have put an older copy of a journal at FILE, or the
        database at URL was promoted with loss or loaded from an old dump: Holdfast makes it the journal, and marks
        every open task as in doubt.
        examples:
          holdfast recover --place /mnt/nas/holdfast --home ~/agents/ada
          holdfast recover --place ssh://u1@backup.example.org/./ada --home ~/agents/ada \\
            --second /media/stick/ada
          holdfast recover --place /mnt/nas/holdfast --home ~/agents/ada --dry-run --json
          holdfast recover --place /mnt/nas/holdfast --file MEMORY.md --to ~/looked-at
          holdfast recover --place /mnt/nas/holdfast --rescue-key /mnt/keys/ada-rescue --to ~/copy
          holdfast recover --place /mnt/nas/holdfast --home ~/agents/ada \\
            --journal postgresql://ada@db.example.org/agents
          holdfast recover --witness https://relay.example#z6Mk... --home ~/agents/ada
          holdfast recover --journal journal.db --yes
          holdfast recover --journal postgresql://ada@db.example.org/agents --home ~/agents/ada
          holdfast recover --journal journal.db --begin-anew
        """)
    add_list(
        parser,
        "--place",
        "ADDRESS",
        "where backups are: a folder, or ssh://user@host/path; repeat it for all places that you "
        "can reach (those in the folder's own places.json are used too)",
    )
    parser.add_argument("--agent", metavar="NAME", default="", help="which agent, if a place holds several")
    add_options(parser, "--home", "--vault", "--second")
    add_flag(parser, "--keep-keys", "the vault was not lost; do not ask for the recovery words")
    parser.add_argument(
        "--rescue-key", metavar="FILE", help="with --to: use this rescue key (`holdfast rescue add`) instead of words"
    )
    add_words_options(parser)
    add_slot_options(parser, new=True)
    add_list(parser, "--card", "FILE", "the public card: its text, or a scan (PDF, PNG, JPEG); repeat it for each page")
    add_list(parser, "--log", "FILE", "a copy of kel.jsonl")
    add_witnesses(parser, "--witness", "an existing witness of the agent")
    add_witnesses(
        parser,
        "--new-witness",
        "use this witness instead of the old ones (default if too few of them answer: ~/.config/holdfast/witness/NAME)",
    )
    add_options(parser, "--invite", "--id")
    parser.add_argument(
        "--at", metavar="TIME", help="restore the state of this time: 2026-11-15 or 2026-11-15T14:30 (UTC)"
    )
    parser.add_argument("--to", metavar="FOLDER", help="only unpack the files into this new folder")
    add_list(
        parser,
        "--file",
        "PATH",
        "with --to: only this file or folder of the agent; Holdfast names damaged files and leaves "
        "them out, and ignores damage elsewhere",
    )
    parser.add_argument(
        "--rsh", metavar="COMMAND", default="", help="use this command instead of ssh for places on other hosts"
    )
    add_flag(
        parser,
        "--again",
        "restore a folder again; or, if the agent was already recovered with keys that are not on this machine, "
        "recover it again and lock those keys out",
    )
    add_flag(
        parser,
        "--accept-older",
        "no key log that you gave can verify the newest snapshots: restore the newest one that it can verify",
    )
    parser.add_argument("--start", metavar="APP", help="afterwards run this app's tasks, as `holdfast worker` does")
    parser.add_argument(
        "--journal",
        metavar="ADDRESS",
        help="without --place: restore only this journal, a file (put the copy there first) or postgresql://...; with "
        "--place: the database that gets the journal",
    )
    add_flag(parser, "--begin-anew", "with --journal: no copy is left; start an empty journal")
    add_options(parser, "--json")
    add_flag(parser, "--dry-run", "only show what would happen; fails if nothing could be restored")
    add_options(parser, "--yes")


def run(args: argparse.Namespace) -> int:
    if args.begin_anew and args.journal is None:
        raise BadInput("--begin-anew needs --journal FILE: the journal that is missing")
    if args.journal is not None and not (args.place and is_url(args.journal)):
        from holdfast.cli.recover import journal as recover_journal

        return recover_journal.run(args)
    from holdfast.cli.recover import agent as recover_agent

    if recover_agent.has_paper_alone(args):
        return recover_agent.run_without_backup(args)
    return recover_agent.run(args)
