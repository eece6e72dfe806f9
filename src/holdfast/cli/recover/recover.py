"""`holdfast recover`: the front door at night, and the one that is printed on paper."""

from __future__ import annotations

import argparse

from holdfast.cli.command import Commands, add_home_option, add_json_option, new_command
from holdfast.cli.input.input_sheet import add_words_options
from holdfast.cli.input.input_slots import add_slot_options


def add_parser(commands: Commands) -> None:
    parser = new_command(
        commands,
        "recover",
        run=run,
        purpose=(
            "Bring an agent back: from the words of its sheet, or shares, and one place of its\n"
            "backups, on a machine that has nothing of it.\n\n"
            "The newest snapshot that any place knows of is restored and compared, byte by byte,\n"
            "with what the agent signed; damaged in one place, it is taken from another; whole in\n"
            "none, the newest older one that is, and you are told what that loses.\n"
            "The id stays the same; whoever had the old keys is out.\n"
            "Every open task becomes suspect: what it may have done after the snapshot is looked\n"
            "up with its effect key, or parked for a person; nothing is repeated on a guess. What\n"
            "was in the folder before is kept beside it. A run that was cut short is finished by\n"
            "the same command.\n\n"
            "With --card and no place only the identity comes back: sheet and card are enough.\n"
            "With --keep-keys the vault at --vault was not lost: nobody is evicted.\n"
            "With --journal FILE only an older copy of the journal that was put back becomes a\n"
            "proper restore."
        ),
        examples=(
            "holdfast recover --place /mnt/nas/holdfast --home ~/agents/ada",
            "holdfast recover --place ssh://u1@backup.example.org/./ada --home ~/agents/ada \\\n"
            "    --second /media/stick/ada",
            "holdfast recover --place /mnt/nas/holdfast --home ~/agents/ada --dry-run --json",
            "holdfast recover --place /mnt/nas/holdfast --file MEMORY.md --to ~/looked-at",
            "holdfast recover --journal journal.db --yes",
            "holdfast recover --journal journal.db --begin-anew",
        ),
    )
    parser.add_argument(
        "--place",
        metavar="ADDRESS",
        action="append",
        default=[],
        help="where backups are: a folder, ssh://user@host/path; repeat it for all that you can "
        "reach (also: those that the folder's own places.json names)",
    )
    parser.add_argument("--agent", metavar="NAME", default="", help="which agent, where a place holds several")
    add_home_option(parser)
    parser.add_argument("--vault", metavar="DIR", help="default: ~/.config/holdfast/vault/NAME")
    parser.add_argument("--second", metavar="DIR", help="the place of the next key: another disk, or another user")
    parser.add_argument("--keep-keys", action="store_true", help="the vault was not lost; do not ask for paper")
    add_words_options(parser)
    add_slot_options(parser, new=True)
    parser.add_argument(
        "--card", metavar="FILE", action="append", default=[], help="the text of the public card, or of its code"
    )
    parser.add_argument("--log", metavar="FILE", action="append", default=[], help="a copy of kel.jsonl")
    parser.add_argument(
        "--witness", metavar="DIR", action="append", default=[], help="the folder of a witness that the agent had"
    )
    parser.add_argument(
        "--new-witness",
        metavar="DIR",
        action="append",
        default=[],
        help="name this witness instead of the old ones "
        "(default where too few of these answer: ~/.config/holdfast/witness/NAME)",
    )
    parser.add_argument("--at", metavar="TIME", help="as it was then: 2026-11-15 or 2026-11-15T14:30 (UTC)")
    parser.add_argument("--to", metavar="FOLDER", help="only unpack, into this new folder; nothing is made to run")
    parser.add_argument(
        "--file",
        metavar="PATH",
        action="append",
        default=[],
        help="with --to: only this file or folder of the agent; what is damaged is named and left "
        "out, damage elsewhere does not matter",
    )
    parser.add_argument("--rsh", metavar="COMMAND", default="", help="instead of ssh, for places on a far host")
    parser.add_argument(
        "--again", action="store_true", help="restore once more, or evict keys of an earlier recovery that are not here"
    )
    parser.add_argument(
        "--accept-older",
        action="store_true",
        help="a place knows of keys that no log at hand shows: take the older snapshots all the same",
    )
    parser.add_argument("--start", metavar="APP", help="afterwards serve the tasks of this app, as `worker` does")
    parser.add_argument("--journal", metavar="FILE", help="only this journal, already put back")
    parser.add_argument(
        "--begin-anew", action="store_true", help="with --journal: no copy is left; an empty journal takes its place"
    )
    add_json_option(parser)
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="show what would happen, do nothing; an error where nothing could be restored",
    )
    parser.add_argument("--yes", action="store_true", help="do not ask for the typed word")


def run(args: argparse.Namespace) -> int:
    from holdfast.errors import BadInput

    if args.begin_anew and args.journal is None:
        raise BadInput("--begin-anew needs --journal FILE: the journal that is gone")
    if args.journal is not None:
        from holdfast.cli.recover import journal as recover_journal

        return recover_journal.run(args)
    from holdfast.cli.recover import agent as recover_agent

    if recover_agent.has_paper_alone(args):
        return recover_agent.run_without_backup(args)
    return recover_agent.run(args)
