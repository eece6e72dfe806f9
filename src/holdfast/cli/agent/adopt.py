"""`holdfast adopt FOLDER`: protect an existing agent; none of its files moves."""

from __future__ import annotations

import argparse
import shlex
from typing import TYPE_CHECKING, Any

from holdfast.cli.agent.init import add_identity_options
from holdfast.cli.command import Commands, add_flag, add_options, new_command
from holdfast.cli.input.terminal import confirm
from holdfast.cli.screen.screen import print_fields, print_json, print_table, talk

if TYPE_CHECKING:
    from holdfast.layout.covered import FolderEntry
    from holdfast.recovery.adopt import FolderSurvey

SHOWN_MAX = 40


def add_parser(commands: Commands) -> None:
    parser = new_command(commands, "adopt", run).help("""
        Give an existing agent, in any language or framework, an identity, backups, a hand-off and recovery. Lists
        what was found, what is backed up and what is not. Holdfast does not move, write or change the mode of any
        of its files. Holdfast's own files are in FOLDER/.holdfast, readable only by you. If a run is interrupted,
        run the same command again to finish it.
        examples:
          holdfast adopt ~/clawd --dry-run
          holdfast adopt ~/clawd --second /media/stick/clawd
        """)
    parser.add_argument("folder", metavar="FOLDER", help="the agent's folder")
    parser.add_argument("--name", metavar="NAME", default="", help="the agent's name (default: the folder's name)")
    add_options(parser, "--dry-run", "--yes")
    add_flag(
        parser,
        "--seal-secrets",
        "seal its secret files (.env, credentials, keys) into each backup; `holdfast recover` puts them back. Without "
        "it they are in no backup. You may run adopt again with this option",
    )
    add_flag(parser, "--without-identity", "no keys yet: `holdfast init NAME --home FOLDER/.holdfast` makes them later")
    add_identity_options(parser)
    add_options(parser, "--json")


def run(args: argparse.Namespace) -> int:
    from holdfast.app.handoff import write_foreign
    from holdfast.cli.agent.init import lacks_relays, make
    from holdfast.cli.input.agent_places import path_of, paths_of, witnesses_of
    from holdfast.identity.acts.make_agent import find_whole
    from holdfast.layout.agent_home import BY_JOURNAL
    from holdfast.layout.witness_address import folders_of
    from holdfast.recovery.adopt import check_apart, prepare, survey_folder

    found = survey_folder(path_of(args.folder), name=args.name, seal_secrets=args.seal_secrets)
    given = paths_of([one for one in (args.vault, args.second, args.arbiter) if one and one != BY_JOURNAL])
    check_apart(found.folder, (*given, *folders_of(witnesses_of(args.witness))))
    if not args.json:
        _print(found)
    identity: dict[str, Any] | None = None
    if not args.dry_run:
        confirm(found.name, f"Holdfast makes {found.home} and changes nothing else", yes=args.yes)
        home = prepare(found, seal_secrets=args.seal_secrets)
        if not args.without_identity and (not find_whole(found.home) or lacks_relays(found.home, args.relay)):
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
    where = shlex.quote(str(found.folder))
    if identity is not None:
        print()
        print_fields([(key, value if isinstance(value, str) else "\n".join(value)) for key, value in identity.items()])
        talk(f"next: `cd {where}`, `holdfast paper print | lp`, then `holdfast place add NAME ADDRESS`")
    talk(
        f"adopted: {found.folder} as {found.name}\n"
        "hint: let the agent read .holdfast/handoff.md first when it starts; "
        f"`holdfast handoff --home {where}` updates it"
    )
    if any(part.path == ".git/" for part in found.parts):
        talk("hint: keep .holdfast out of git: `echo .holdfast >> .git/info/exclude`")


def _print(found: FolderSurvey) -> None:
    print_fields(
        [
            ("folder", f"{found.folder} (mode {found.mode:04o}; not changed)"),
            ("name", found.name),
            ("Holdfast's files", f"{found.home} (mode 0700)" + " (exists already)" * found.adopted),
            ("identity", "yes: an id that never changes; its keys are in a vault elsewhere"),
            ("backup", _backup_words(found)),
            ("hand-off", f"yes: {found.home}/handoff.md, from its own files"),
            ("recovery", "yes: `holdfast recover`, from the recovery sheet and one backup"),
        ]
    )
    print()
    print_table(
        ("found", "what it is", "files"),
        [(part.path, part.what, str(part.files)) for part in found.parts],
        empty="no files that Holdfast knows by name; it backs the files up all the same",
    )
    _print_entries("database", found.databases, "copied with SQLite's own backup, also while in use")
    _print_entries("note", found.remarks, "")
    _print_entries("not backed up", found.left_out, "")


def _print_entries(title: str, entries: tuple[FolderEntry, ...], text: str) -> None:
    if not entries:
        return
    print()
    rows = [(one.path, text or _why(one)) for one in entries[:SHOWN_MAX]]
    print_table((title, "why" if not text else "how"), rows, empty="")
    if len(entries) > SHOWN_MAX:
        print(f"and {len(entries) - SHOWN_MAX:,} more (--json lists all)")


def _why(entry: FolderEntry) -> str:
    if entry.left_out is None:
        return entry.remark
    return f"{entry.left_out.reason}: {entry.left_out.text}"


def _backup_words(found: FolderSurvey) -> str:
    words = f"yes: {found.files:,} files, {len(found.databases)} databases, {found.links} links"
    words += f", {found.bytes:,} bytes"
    if found.secrets and found.seal_secrets:
        words += f"; {len(found.secrets)} files with plain-text secrets are sealed"
    elif found.secrets:
        words += f"; {len(found.secrets)} files with plain-text secrets are left out: keep copies elsewhere, or give "
        words += "--seal-secrets"
    return words


def _shape(found: FolderSurvey) -> dict[str, Any]:
    return {
        "folder": str(found.folder),
        "name": found.name,
        "home": str(found.home),
        "adopted_before": found.adopted,
        "seal_secrets": found.seal_secrets,
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
