"""`holdfast secret`: the secrets of tools, by name; no command shows a value."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.cli.command import Commands, add_flag, add_options, new_noun, new_verb, over_journal
from holdfast.cli.input.input_journal import run_opened
from holdfast.cli.input.terminal import ask_twice, confirm, read_descriptor
from holdfast.cli.screen.screen import ago, finish, print_json, print_table
from holdfast.errors import BadInput, BadSecret, InvariantViolated, SecretInUse

if TYPE_CHECKING:
    from holdfast.app.holdfast import Holdfast
    from holdfast.identity.journal_keys.secret_file import SecretFile


def add_parser(commands: Commands) -> None:
    verbs = new_noun(commands, "secret").help("""
        The secrets of tools. A tool's argument names one as secret://NAME. Holdfast fills in the value when it
        sends the call, and never records, shows or logs it. Values are encrypted in secrets.sealed next to the
        journal's keys; running workers see a change at once.
        examples:
          holdfast secret set billing
          holdfast secret list
        """)
    parser = new_verb(verbs, "set", run_set).help("""store a new secret

        Store a new secret. Holdfast asks for the value without showing it, or reads it from a descriptor or a
        private file. Never put it on the command line or in the environment, where other programs can read it. At
        least 8 characters; a final line break is dropped.
        examples:
          holdfast secret set billing
          holdfast secret set billing --from-file billing.key
          pass show billing | holdfast secret set billing --from-fd 0
        """)
    _add_value_options(parser)
    parser = new_verb(verbs, "list", over_journal(_list)).help("""names, versions and ages; never values

        List every secret by name; never a value.
        columns:
          secret   the handle to use in an argument
          version  the version that new steps use
          age      how long this version is in use
          kept     older versions that open steps may still send
        examples:
          holdfast secret list
          holdfast secret list --json
        """)
    add_options(parser, "--journal", "--home", "--json")
    parser = new_verb(verbs, "rotate", run_rotate).help("""give a secret a new value

        Give a secret a new value. New steps use it at once. A step that was planned with the old value still sends
        that one; Holdfast keeps two older versions for this. Use --drop-old if the old value is revoked: Holdfast
        then forgets it, and parks a step that may have been sent with it instead of sending it again with another
        value.
        examples:
          holdfast secret rotate billing
          holdfast secret rotate billing --from-file new.key --drop-old
        """)
    _add_value_options(parser)
    add_flag(parser, "--drop-old", "forget older versions: the old value is revoked")
    parser = new_verb(verbs, "remove", over_journal(_remove)).help("""remove a secret

        Remove a secret with all its versions. Asks first; refuses if open steps use it. Holdfast no longer
        recognises the value if a far end echoes it later.
        examples:
          holdfast secret remove billing
          holdfast secret remove billing --yes
        """)
    parser.add_argument("name", metavar="NAME", help="name of the secret, without secret://")
    add_flag(parser, "--force", "also if open steps use it: they will be parked")
    add_options(parser, "--yes", "--dry-run", "--journal", "--home", "--json")


def _add_value_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="name of the secret, without secret://")
    parser.add_argument("--from-fd", metavar="N", help="read the value from this open descriptor; 0 is standard input")
    parser.add_argument("--from-file", metavar="FILE", help="read the value from a file that only you can read (0600)")
    add_options(parser, "--journal", "--home", "--json")


def run_set(args: argparse.Namespace) -> int:
    _read_value(args)
    return run_opened(args, _set, create=True)  # often the first command in a new folder


def run_rotate(args: argparse.Namespace) -> int:
    _read_value(args)
    return run_opened(args, _rotate)


def _read_value(args: argparse.Namespace) -> None:
    """First of all: a descriptor must be the caller's, not one that we open later."""
    from holdfast.identity.journal_keys.secret_file import VALUE_BYTES_MAX, check_name, check_value

    args.name = args.name.removeprefix("secret://")
    check_name(args.name)
    if args.from_fd is not None and args.from_file is not None:
        raise BadInput("give only one of --from-fd and --from-file")
    if args.from_fd is not None:
        args.value = _decoded(read_descriptor("--from-fd", args.from_fd, VALUE_BYTES_MAX + 2))
    elif args.from_file is not None:
        args.value = _decoded(_from_file(Path(args.from_file)))
    else:
        hint = "give --from-fd 0 to read it from standard input"
        args.value = ask_twice(f"value of secret://{args.name}", for_what="the value", hint=hint)
    check_value(args.name, args.value)


def _from_file(path: Path) -> bytes:
    from holdfast.host.private_files import open_private
    from holdfast.identity.journal_keys.secret_file import VALUE_BYTES_MAX

    try:
        with os.fdopen(open_private(path, os.O_RDONLY), "rb") as file:
            return file.read(VALUE_BYTES_MAX + 2)
    except OSError as error:
        raise BadInput(f"--from-file: {str(path)!r} cannot be read: {error.strerror}") from error


def _decoded(raw: bytes) -> str:
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        raise BadSecret(
            "the value is not UTF-8 text", hint="store bytes as base64 and let the tool decode them"
        ) from None
    return text.removesuffix("\n").removesuffix("\r")


async def _set(hf: Holdfast, args: argparse.Namespace) -> int:
    handle, number = f"secret://{args.name}", _store(hf).set(args.name, args.value)
    fields = {"name": args.name, "handle": handle, "version": number}
    return finish(args, fields, f"stored: {handle} version {number}; use this handle in a tool's argument")


async def _rotate(hf: Holdfast, args: argparse.Namespace) -> int:
    from holdfast.views.unfinished import find_users

    name = args.name
    number = _store(hf).rotate(name, args.value, drop_old=args.drop_old)
    older = await find_users(hf.journal, name, below=number) if args.drop_old else []
    return finish(
        args,
        {"name": name, "handle": f"secret://{name}", "version": number, "older_steps": list(older)},
        f"stored: secret://{name} version {number}; new steps use it",
        *(f"note: step {at} was planned with an older version; it may be parked with a question" for at in older),
    )


async def _remove(hf: Holdfast, args: argparse.Namespace) -> int:
    from holdfast.views.unfinished import find_users

    name = args.name.removeprefix("secret://")
    store = _store(hf)
    store.get(name)
    users = await find_users(hf.journal, name)
    if users and not args.force:
        shown = ", ".join(users[:5]) + (f" and {len(users) - 5} more" if len(users) > 5 else "")
        raise SecretInUse(f"{len(users)} open steps use secret://{name}: {shown}")
    what = f"Holdfast removes secret://{name} with all its versions; {len(users)} open steps use it"
    fields = {"name": name, "open_steps": list(users), "done": not args.dry_run}
    if args.dry_run:
        return finish(args, fields, f"{what}\nnothing was changed (--dry-run)")
    confirm(name, what, yes=args.yes)
    store.remove(name)
    return finish(args, fields, f"removed: secret://{name}")


async def _list(hf: Holdfast, args: argparse.Namespace) -> int:
    from holdfast.core.clock import iso

    found = _store(hf).list_secrets()
    if args.json:
        shapes: list[dict[str, object]] = []
        for name, one in found.items():
            newest = one.versions[-1]
            versions = [
                {"version": each.number, "created": iso(each.created_ms), "active": each is newest}
                for each in one.versions
            ]
            shapes.append({"name": name, "handle": f"secret://{name}", "version": newest.number, "versions": versions})
        print_json({"secrets": shapes})
        return 0
    now = hf.journal.now_ms()
    print_table(
        ("secret", "version", "age", "kept"),
        [
            (
                f"secret://{name}",
                str(one.versions[-1].number),
                ago(now - one.versions[-1].created_ms),
                ", ".join(str(each.number) for each in one.versions[:-1]) or "-",
            )
            for name, one in found.items()
        ],
        empty="no secrets yet; `holdfast secret set NAME` stores one",
    )
    return 0


def _store(hf: Holdfast) -> SecretFile:
    from holdfast.core.reading_ring import refuse
    from holdfast.identity.journal_keys.secret_file import SecretFile
    from holdfast.runtime.secrets import NO_SECRETS

    store = hf.secrets.store
    if store is NO_SECRETS.store:
        refuse()  # a rescue key opens the journal, not these
    if not isinstance(store, SecretFile):
        raise InvariantViolated("secrets", "this journal stores its secrets elsewhere")
    return store
