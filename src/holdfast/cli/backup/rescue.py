"""`holdfast rescue`: keys that read an agent's backups without a person, and sign nothing."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from holdfast.cli.backup.places import over_places
from holdfast.cli.command import Commands, add_flag, add_options, home_of, new_noun, new_verb
from holdfast.cli.input.terminal import confirm
from holdfast.cli.screen.screen import print_json, print_table, talk
from holdfast.cli.signals import in_loop
from holdfast.errors import EXIT_PLACE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.backup.places.backup_places import BackupPlaces
    from holdfast.backup.places.places import Place
    from holdfast.backup.rescue_keys import Renewal, RenewalPlan
    from holdfast.identity.vault.rescue import RescueEntry


def add_parser(commands: Commands) -> None:
    verbs = new_noun(commands, "rescue").help("""
        Keys that open an agent's backups for reading: for scheduled drills, and for a rescue at night when no person
        has the words. A rescue key restores a copy to look at (`holdfast recover --rescue-key FILE --to FOLDER`). It
        cannot sign, rotate, run a worker, send an effect, or read the secrets of tools.
        examples:
          holdfast rescue add /mnt/keys/ada-rescue
          holdfast rescue list
        """)
    parser = new_verb(verbs, "add", over_places(_add)).help("""make a rescue key

        Make a rescue key in FILE (mode 0600), and write rescue.age beside every place. Anyone who can read both FILE
        and a place can read the agent's backups: keep FILE on the machine that runs the drills, not at a place. If a
        run is interrupted, run the same command again to finish it.
        examples:
          holdfast rescue add /mnt/keys/ada-rescue
          holdfast rescue add /mnt/keys/ada-night --name night
        """)
    parser.add_argument("file", metavar="FILE", help="where to write the key; a new file")
    parser.add_argument("--name", metavar="NAME", default="rescue", help="a name for the key (default: rescue)")
    add_options(parser, "--home", "--json")
    parser = new_verb(verbs, "list", run_list).help("""list rescue keys, and what each opens

        List the agent's rescue keys, as of the last change or backup. Opens no vault and contacts no place.
        columns:
          key      its name
          state    valid, or since when it is revoked
          added    when it was made
          opens    which places it opens; of a revoked key, what it still opens
        examples:
          holdfast rescue list
          holdfast rescue list --json
        """)
    add_options(parser, "--home", "--json")
    parser = new_verb(verbs, "revoke", in_loop(_revoke)).help("""close the backups to a rescue key

        Revoke a rescue key. Borg cannot take a key back, so Holdfast begins a new repository at every place, sends a
        whole snapshot to it, and restores it as a test; first it shows how much that is. Then the key opens nothing
        that is new. A place that cannot be reached stays open to the key: run the same command again when it is back.

        The old repositories stay, and the key opens them: their older snapshots are still yours to read with Borg.
        --remove-old deletes them. If a run is interrupted, run the same command again to finish it.
        examples:
          holdfast rescue revoke rescue --dry-run
          holdfast rescue revoke rescue
          holdfast rescue revoke rescue --remove-old --yes
        """)
    parser.add_argument("name", metavar="NAME", help="the key, as `holdfast rescue list` names it")
    add_flag(parser, "--remove-old", "also delete the old repositories, with all their snapshots")
    add_options(parser, "--home", "--dry-run", "--yes", "--json")


async def _add(places: BackupPlaces, args: argparse.Namespace) -> int:
    from holdfast.backup.rescue_keys import add_rescue_key
    from holdfast.cli.input.agent_places import path_of
    from holdfast.core.clock import iso

    file = path_of(args.file)
    entry, failed = await add_rescue_key(places, file, name=args.name)
    if args.json:
        shown = {"name": entry.name, "file": str(file), "recipient": entry.recipient, "added": iso(entry.added_ms)}
        print_json({**shown, "not_written_at": {name: str(error) for name, error in failed.items()}})
        return 0
    talk(f"added: rescue key {entry.name} in {file}; it opens the backups of {places.home.name}, and signs nothing")
    for name, error in failed.items():
        talk(f"WARNING: place {name}: rescue.age is not there yet: {error}; the next backup writes it")
    if not places.read():
        talk("next: `holdfast place add NAME ADDRESS`: there is no place yet that the key could open")
    return 0


def run_list(args: argparse.Namespace) -> int:
    from holdfast.backup.places.places import read_places
    from holdfast.backup.places.rescue_file import find_fix, opened_by, read_register
    from holdfast.core.clock import iso

    home = home_of(args)
    places, entries = read_places(home.places_file), read_register(home)
    if args.json:
        print_json({"keys": [_shape(one, places) for one in entries]})
        return 0
    rows = [
        (
            one.name,
            f"revoked {iso(one.revoked_ms)}" if one.revoked_ms else "valid",
            iso(one.added_ms),
            "; ".join(opened.text for opened in opened_by(one, places)) or "nothing",
        )
        for one in entries
    ]
    print_table(("key", "state", "added", "opens"), rows, empty="no rescue keys; `holdfast rescue add FILE` makes one")
    for one in entries:
        fix = find_fix(one, places)
        if fix:
            talk(f"hint: {fix} closes the backups to the key {one.name}")
    return 0


def _shape(entry: RescueEntry, places: Sequence[Place]) -> dict[str, object]:
    from holdfast.backup.places.rescue_file import opened_by
    from holdfast.core.clock import iso

    return {
        "name": entry.name,
        "recipient": entry.recipient,
        "added": iso(entry.added_ms),
        "revoked": iso(entry.revoked_ms),
        "opens": opened_by(entry, places),
    }


async def _revoke(args: argparse.Namespace) -> int:
    from holdfast.backup.backups import open_backups
    from holdfast.backup.rescue_keys import get_entry, plan_renewals, remove_older, revoke_rescue_key
    from holdfast.cli.screen.progress import Progress

    with Progress() as news:
        backups = await open_backups(home_of(args), progress=news)
        entry = get_entry(backups.places, args.name)
        plans = plan_renewals(backups.places, entry)
        if not args.json:
            _show_plans(args, plans)
        if args.dry_run:
            if args.json:
                print_json({"name": entry.name, "done": False, "would": plans})
            return 0
        if plans or not entry.revoked_ms or args.remove_old:
            what = "; the old repositories are deleted with all their snapshots" if args.remove_old else ""
            confirm("revoke", f"Holdfast revokes the rescue key {entry.name}{what}", yes=args.yes)
        done = await revoke_rescue_key(backups, entry)
        entry = get_entry(backups.places, args.name)
        removed = await remove_older(backups.places, entry) if args.remove_old else ()
    if args.json:
        shape = _shape(entry, backups.places.read())
        print_json({**shape, "done": all(one.done for one in done), "places": done, "removed": removed})
    else:
        _show_done(entry, backups.places.read(), done)
        for one in removed:
            talk(f"removed: {one.repository}" if one.removed else f"NOT REMOVED: {one.repository}: {one.message}")
    return 0 if all(one.done for one in done) and all(one.removed for one in removed) else EXIT_PLACE


def _show_plans(args: argparse.Namespace, plans: Sequence[RenewalPlan]) -> None:
    """How much it is, before anything is asked."""
    if not plans:
        talk(f"no place has to begin a new repository because of the rescue key {args.name}")
        return
    talk("Borg cannot take a key back: every place begins a new repository, and gets a whole snapshot")
    for one in plans:
        took = "time not known: no test restore was measured here" if one.seconds is None else f"about {one.seconds} s"
        talk(f"place {one.place}: {one.files:,} files, {one.bytes:,} bytes before compression, {took}")
    talk(f"total: up to {sum(one.bytes for one in plans):,} bytes; the old repositories stay without --remove-old")


def _show_done(entry: RescueEntry, places: Sequence[Place], done: Sequence[Renewal]) -> None:
    from holdfast.backup.places.rescue_file import opened_by

    for one in done:
        if one.done:
            talk(f"place {one.place}: new repository {one.repository}, with a verified snapshot")
        else:
            talk(f"NOT DONE: place {one.place}: {one.message}\nhint: {one.hint}")
    left = opened_by(entry, places)
    talk(f"revoked: {entry.name}; it still opens: {'; '.join(one.text for one in left) or 'nothing'}")
    if any(one.newer for one in left):
        talk(f"next: run `holdfast rescue revoke {entry.name}` again when these places can be reached")
