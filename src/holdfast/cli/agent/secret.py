"""`holdfast secret`: the secrets of tools, by name; a value goes in and never comes out."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from holdfast.cli.command import Commands, add_journal_option, add_json_option, add_verbs, new_command, over_journal
from holdfast.errors import InvariantViolated

if TYPE_CHECKING:
    from holdfast.app.open import Holdfast
    from holdfast.identity.journal_keys.secret_file import SecretFile


def add_parser(commands: Commands) -> None:
    parser = new_command(
        commands,
        "secret",
        run=None,
        purpose="The secrets of tools. A tool's argument names one as secret://NAME; its value is "
        "put in when the call is sent, and never recorded, shown or logged. Values are sealed in "
        "secrets.sealed beside the journal's keys; running workers see a change at once.",
        examples=("holdfast secret set billing", "holdfast secret list"),
    )
    verbs = add_verbs(parser)
    _add_set(verbs)
    _add_list(verbs)
    _add_rotate(verbs)
    _add_remove(verbs)


def _add_set(verbs: Commands) -> None:
    parser = new_command(
        verbs,
        "set",
        run=run_set,
        summary="keep a new secret",
        purpose="Keep a new secret. The value is asked for without showing it, or read from a "
        "descriptor or a private file; never given as a word or in the environment, where other "
        "programs can read it. At least 8 characters; one last line break is dropped.",
        examples=(
            "holdfast secret set billing",
            "holdfast secret set billing --from-file billing.key",
            "pass show billing | holdfast secret set billing --from-fd 0",
        ),
    )
    _add_value_options(parser)


def _add_list(verbs: Commands) -> None:
    parser = new_command(
        verbs,
        "list",
        run=over_journal(_list),
        summary="names, versions and ages; never values",
        purpose="Every secret that is set, by name; never a value.",
        columns=(
            ("secret", "the handle that an argument names"),
            ("version", "the one that new steps take"),
            ("age", "since when it is active"),
            ("kept", "older versions that steps planned with them may still send"),
        ),
        examples=("holdfast secret list", "holdfast secret list --json"),
    )
    add_journal_option(parser)
    add_json_option(parser)


def _add_rotate(verbs: Commands) -> None:
    parser = new_command(
        verbs,
        "rotate",
        run=run_rotate,
        summary="give a secret a new value",
        purpose="Give a secret a new value. New steps take it at once. A step that was planned "
        "with the value before sends that one; two older versions are kept for it. --drop-old "
        "forgets them, where the old value is revoked: a step that may have been sent with it is "
        "then parked with a question instead of being sent again with another one.",
        examples=("holdfast secret rotate billing", "holdfast secret rotate billing --from-file new.key --drop-old"),
    )
    _add_value_options(parser)
    parser.add_argument("--drop-old", action="store_true", help="keep no older version: the old value is revoked")


def _add_remove(verbs: Commands) -> None:
    parser = new_command(
        verbs,
        "remove",
        run=over_journal(_remove),
        summary="forget a secret",
        purpose="Forget a secret, all its versions. Asks first; refuses where open steps have "
        "recorded it. What a far end echoes of it later is not recognised any more.",
        examples=("holdfast secret remove billing", "holdfast secret remove billing --yes"),
    )
    parser.add_argument("name", metavar="NAME", help="the secret, without secret://")
    parser.add_argument("--force", action="store_true", help="also where open steps use it: they will be parked")
    parser.add_argument("--yes", action="store_true", help="do not ask for the typed word")
    parser.add_argument("--dry-run", action="store_true", help="only say what would be done")
    add_journal_option(parser)
    add_json_option(parser)


def _add_value_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="the secret, without secret://")
    parser.add_argument("--from-fd", metavar="N", help="read the value from this open descriptor; 0 is a pipe")
    parser.add_argument("--from-file", metavar="FILE", help="read the value from a file that is yours alone (0600)")
    add_journal_option(parser)
    add_json_option(parser)


def run_set(args: argparse.Namespace) -> int:
    from holdfast.cli.input.input_journal import run_opened

    _read_value(args)
    return run_opened(args, _set, create=True)  # often the first thing that is done here


def run_rotate(args: argparse.Namespace) -> int:
    from holdfast.cli.input.input_journal import run_opened

    _read_value(args)
    return run_opened(args, _rotate)


def _read_value(args: argparse.Namespace) -> None:
    """Before anything is opened here: a descriptor must be the caller's, not one of ours."""
    from holdfast.cli.input.input_secret import read_secret
    from holdfast.identity.journal_keys.secret_file import check_name, check_value

    args.name = args.name.removeprefix("secret://")
    check_name(args.name)
    args.value = read_secret(args.name, from_fd=args.from_fd, from_file=args.from_file)
    check_value(args.name, args.value)


async def _set(hf: Holdfast, args: argparse.Namespace) -> int:
    from holdfast.cli.screen.screen import print_json, talk

    number = _store(hf).set(args.name, args.value)
    if args.json:
        handle = f"secret://{args.name}"
        print_json({"name": args.name, "handle": handle, "version": number})
        return 0
    talk(f"kept: secret://{args.name} version {number}; a tool's argument may name it so")
    return 0


async def _rotate(hf: Holdfast, args: argparse.Namespace) -> int:
    from holdfast.cli.screen.screen import print_json, talk
    from holdfast.views.secrets_in_use import find_users

    name = args.name
    number = _store(hf).rotate(name, args.value, drop_old=args.drop_old)
    older = await find_users(hf.journal, name, below=number) if args.drop_old else []
    if args.json:
        shown = {"name": name, "handle": f"secret://{name}", "version": number}
        print_json({**shown, "older_steps": list(older)})
        return 0
    talk(f"kept: secret://{name} version {number}; new steps take it")
    for place in older:
        talk(f"note: step {place} was planned with an older version; it may ask you")
    return 0


async def _remove(hf: Holdfast, args: argparse.Namespace) -> int:
    from holdfast.cli.input.confirm import confirm
    from holdfast.cli.screen.screen import print_json, talk
    from holdfast.errors import SecretInUse
    from holdfast.views.secrets_in_use import find_users

    name = args.name.removeprefix("secret://")
    store = _store(hf)
    store.get(name)
    users = await find_users(hf.journal, name)
    if users and not args.force:
        shown = ", ".join(users[:5]) + (f" and {len(users) - 5} more" if len(users) > 5 else "")
        raise SecretInUse(f"secret://{name} is recorded by {len(users)} open steps: {shown}")
    what = f"secret://{name} and its versions are forgotten; {len(users)} open steps use it"
    if args.dry_run:
        if args.json:
            print_json({"name": name, "open_steps": list(users), "done": False})
            return 0
        talk(f"{what}\nnothing was changed (--dry-run)")
        return 0
    confirm(name, what, yes=args.yes)
    store.remove(name)
    if args.json:
        print_json({"name": name, "open_steps": list(users), "done": True})
        return 0
    talk(f"removed: secret://{name}")
    return 0


async def _list(hf: Holdfast, args: argparse.Namespace) -> int:
    from holdfast.cli.screen.screen import ago, print_json, print_table
    from holdfast.core.clock import iso

    found = _store(hf).list_secrets()
    if args.json:
        print_json(
            {
                "secrets": [
                    {
                        "name": name,
                        "handle": f"secret://{name}",
                        "version": one.versions[-1].number,
                        "versions": [
                            {
                                "version": each.number,
                                "created": iso(each.created_ms),
                                "active": each is one.versions[-1],
                            }
                            for each in one.versions
                        ],
                    }
                    for name, one in found.items()
                ]
            }
        )
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
        empty="no secrets are set; `holdfast secret set NAME` keeps one",
    )
    return 0


def _store(hf: Holdfast) -> SecretFile:
    from holdfast.identity.journal_keys.secret_file import SecretFile

    store = hf.secrets.store
    if not isinstance(store, SecretFile):
        raise InvariantViolated("secrets", "this journal keeps its secrets elsewhere")
    return store
