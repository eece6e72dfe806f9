"""`holdfast adopt FOLDER`: an agent that was there before is covered; none of its files moves."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from holdfast.cli.agent.init import add_identity_options
from holdfast.cli.command import Commands, add_json_option, new_command

if TYPE_CHECKING:
    from holdfast.layout.covered import Entry
    from holdfast.recovery.adopt import FolderSurvey

SHOWN_MAX = 40


def add_parser(commands: Commands) -> None:
    parser = new_command(
        commands,
        "adopt",
        run=run,
        purpose=(
            "Give an agent that was there before, in any language or framework, an identity,\n"
            "backups, a hand-off and recovery. Lists what was found, what is covered and what is\n"
            "not. No file of it is moved, written or given another mode: what Holdfast makes lies\n"
            "in FOLDER/.holdfast, for you alone. A run that was cut short is finished by the same\n"
            "command."
        ),
        examples=("holdfast adopt ~/clawd --dry-run", "holdfast adopt ~/clawd --second /media/stick/clawd"),
    )
    parser.add_argument("folder", metavar="FOLDER", help="the agent's folder")
    parser.add_argument("--name", metavar="NAME", default="", help="default: the folder's name")
    parser.add_argument("--dry-run", action="store_true", help="only list; nothing is made")
    parser.add_argument("--yes", action="store_true", help="do not ask for the typed word")
    parser.add_argument(
        "--without-identity",
        action="store_true",
        help="no keys yet: `holdfast init NAME --home FOLDER/.holdfast` makes them later",
    )
    add_identity_options(parser)
    add_json_option(parser)


def run(args: argparse.Namespace) -> int:
    from holdfast.app.handoff import write_foreign
    from holdfast.cli.agent.init import make
    from holdfast.cli.input.agent_places import path_of, paths_of, witnesses_of
    from holdfast.cli.input.confirm import confirm
    from holdfast.cli.screen.screen import print_json, talk
    from holdfast.identity.acts.make_agent import find_whole
    from holdfast.layout.witness_address import folders_of
    from holdfast.recovery.adopt import check_apart, prepare, survey_folder

    found = survey_folder(path_of(args.folder), name=args.name)
    given = paths_of([one for one in (args.vault, args.second, args.arbiter) if one])
    check_apart(found.folder, (*given, *folders_of(witnesses_of(args.witness))))
    if not args.json:
        _print(found)
    identity: dict[str, Any] | None = None
    if not args.dry_run:
        confirm(found.name, f"{found.home} is made; nothing else is changed", yes=args.yes)
        home = prepare(found)
        if not args.without_identity and not find_whole(found.home):
            identity = make(args, name=found.name, home=found.home)
        write_foreign(home)
    if args.json:
        print_json({**_shape(found), "done": not args.dry_run, "identity": identity})
    elif args.dry_run:
        talk("nothing was changed (--dry-run)")
    else:
        _talk_done(found, identity)
    return 0


def _talk_done(found: FolderSurvey, identity: dict[str, Any] | None) -> None:
    from holdfast.cli.screen.screen import print_fields, talk

    if identity is not None:
        print()
        print_fields([(key, value if isinstance(value, str) else "\n".join(value)) for key, value in identity.items()])
        talk("next: `holdfast paper print --home FOLDER | lp`, then `holdfast place add`")
    talk(
        f"adopted: {found.folder} as {found.name}\n"
        "hint: let the agent read .holdfast/handoff.md first when it starts; "
        "`holdfast handoff --home FOLDER` writes it anew"
    )
    if any(part.path == ".git/" for part in found.parts):
        talk("hint: keep .holdfast out of git: `echo .holdfast >> .git/info/exclude`")


def _print(found: FolderSurvey) -> None:
    from holdfast.cli.screen.screen import print_fields, print_table

    print_fields(
        [
            ("folder", f"{found.folder} (mode {found.mode:04o}; it stays as it is)"),
            ("name", found.name),
            ("Holdfast's files", f"{found.home} (mode 0700)" + " (there already)" * found.adopted),
            ("identity", "yes: an id that never changes, keys in a vault apart"),
            ("backup", _backup_words(found)),
            ("hand-off", f"yes: {found.home}/handoff.md, from its own files"),
            ("recovery", "yes: `holdfast recover`, from paper and one backup"),
        ]
    )
    print()
    print_table(
        ("found", "what it is", "files"),
        [(part.path, part.what, str(part.files)) for part in found.parts],
        empty="nothing that is known by name; the files are covered all the same",
    )
    _print_entries("database", found.databases, "taken by SQLite's own backup, also while in use")
    _print_entries("to know", found.remarks, "")
    _print_entries("not covered", found.left_out, "")


def _print_entries(title: str, entries: tuple[Entry, ...], text: str) -> None:
    from holdfast.cli.screen.screen import print_table

    if not entries:
        return
    print()
    rows = [(one.path, text or _why(one)) for one in entries[:SHOWN_MAX]]
    print_table((title, "why" if not text else "how"), rows, empty="")
    if len(entries) > SHOWN_MAX:
        print(f"and {len(entries) - SHOWN_MAX:,} more (--json lists all)")


def _why(entry: Entry) -> str:
    if entry.left_out is None:
        return entry.remark
    return f"{entry.left_out.reason}: {entry.left_out.text}"


def _backup_words(found: FolderSurvey) -> str:
    words = f"yes: {found.files:,} files, {len(found.databases)} databases, {found.links} links"
    words += f", {found.bytes:,} bytes"
    if found.secrets:
        words += f"; {len(found.secrets)} secrets in the clear are left out: keep copies apart"
    return words


def _shape(found: FolderSurvey) -> dict[str, Any]:
    return {
        "folder": str(found.folder),
        "name": found.name,
        "home": str(found.home),
        "adopted_before": found.adopted,
        "mode": f"{found.mode:04o}",
        "found": [{"path": one.path, "what": one.what, "files": one.files} for one in found.parts],
        "covered": {
            "files": found.files,
            "folders": found.folders,
            "links": found.links,
            "databases": [one.path for one in found.databases],
            "bytes": found.bytes,
        },
        "remarks": [{"path": one.path, "text": one.remark} for one in found.remarks],
        "left_out": [
            {"path": one.path, "reason": one.left_out.reason.value, "text": one.left_out.text}
            for one in found.left_out
            if one.left_out is not None
        ],
    }
