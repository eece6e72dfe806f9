"""`holdfast place`: where an agent's backups go."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from holdfast.cli.command import Commands, Run, add_flag, add_options, home_of, new_noun, new_verb
from holdfast.cli.input.terminal import confirm
from holdfast.cli.screen.screen import ago, finish, print_json, print_table, talk
from holdfast.cli.signals import in_loop
from holdfast.errors import BadInput, HoldfastError, SnapshotsMissing

if TYPE_CHECKING:
    from holdfast.backup.places.backup_places import BackupPlaces
    from holdfast.backup.places.place_state import PlaceState
    from holdfast.backup.places.places import Place


def add_parser(commands: Commands) -> None:
    verbs = new_noun(commands, "place").help("""
        Where an agent's backups go: folders on other disks, and repositories on other hosts. Each place has its own
        repository and key; a place that fails does not stop the others.
        examples:
          holdfast place add nas /mnt/nas/holdfast --domain 'NAS in the cellar'
          holdfast place list
        """)
    parser = new_verb(verbs, "add", over_places(_add)).help("""add a place, with its own repository

        Add a place and make an encrypted Borg repository there. The folder must exist, so that Holdfast does not
        mistake an unmounted disk for a new place. Holdfast also stores there what your recovery sheet needs to
        restore the agent from this place alone: escrow.age, the heads, and the key blocks of the other places.
        examples:
          holdfast place add nas /mnt/nas/holdfast --domain 'NAS in the cellar'
          holdfast place add host ssh://backup@host.example/./ada --append-only
          holdfast place add host backup@host.example:ada --rsh 'ssh -i ~/.ssh/backup'
          holdfast place add cloud rclone:s3:my-bucket/agents
        """)
    parser.add_argument("name", metavar="NAME", help="a name for the place, such as nas or second-host")
    parser.add_argument(
        "address", metavar="ADDRESS", help="a folder, ssh://user@host:port/path, user@host:path, or rclone:REMOTE:PATH"
    )
    parser.add_argument(
        "--domain",
        metavar="TEXT",
        default="",
        help="what fails together with the place: a machine, a room, a provider (default: the host's "
        "name; for folders, this machine)",
    )
    add_flag(
        parser, "--append-only", "the host runs `borg serve --append-only`: it records removals and does not do them"
    )
    parser.add_argument(
        "--rsh",
        metavar="COMMAND",
        default="",
        help="command that connects to the host, such as 'ssh -p 2222' (default: ssh)",
    )
    parser.add_argument("--remote-borg", metavar="NAME", default="", help="the host's Borg command (default: borg)")
    parser.add_argument(
        "--beside",
        metavar="ADDRESS",
        default="",
        help="address of a second repository, for escrow.age and the heads; give it if Holdfast cannot make "
        "repositories on this host (default: ADDRESS-beside)",
    )
    add_options(parser, "--home", "--json")
    parser = new_verb(verbs, "list", run_list).help("""list places, and when each was last verified

        List the places of the agent, as this machine knows them. Contacts no place.
        columns:
          place     its name
          address   where it is
          domain    what fails together with it; places that share one are listed below
          verified  age of the newest snapshot that passed a test restore; only this counts
          made      age of the newest snapshot
          result    of the last try: ok, or the code of the error
        examples:
          holdfast place list
          holdfast place list --json
        """)
    add_options(parser, "--home", "--json")
    parser = new_verb(verbs, "check", over_places(_check)).help("""check that a place is present, opens and is complete

        Check a place: the right disk is mounted, the repository opens and is the one that was added, no snapshot is
        missing, and the files for a recovery on a new machine are present. --deep reads every chunk; only a test
        restore (`holdfast backup verify`) proves more.
        examples:
          holdfast place check
          holdfast place check nas --deep --json
        """)
    parser.add_argument("name", metavar="NAME", nargs="?", default="", help="the place (default: all)")
    add_options(parser, "--home", "--json")
    add_flag(parser, "--deep", "read every chunk; slow")
    add_flag(parser, "--mark", "write the place's marker file again: you confirm that this is the right place")
    parser = new_verb(verbs, "move", over_places(_move)).help("""give the new address of a repository that you moved

        Tell Holdfast the new address of a place. It must be the same repository; never use both a copy and its
        original.
        examples:
          holdfast place move nas /mnt/rack/holdfast
        """)
    parser.add_argument("name", metavar="NAME", help="the place")
    parser.add_argument("address", metavar="ADDRESS", help="the new address of the place")
    add_options(parser, "--home", "--json")
    parser = new_verb(verbs, "fix-key", over_places(_fix_key)).help("""put a lost key block back

        Put the vault's copy of the key block back into a repository that lost its own.
        examples:
          holdfast place fix-key nas
        """)
    _add_name(parser)
    parser = new_verb(verbs, "break-lock", over_places(_break_lock)).help("""remove a lock that a dead machine left

        Remove a lock that another machine left behind when it died. Two clients at the same time can damage a
        repository: make sure that no other client is working.
        examples:
          holdfast place break-lock nas
        """)
    _add_name(parser)
    add_options(parser, "--yes")
    parser = new_verb(verbs, "remove", over_places(_remove)).help("""stop backing up there; existing snapshots stay

        Stop backing up to this place. Its snapshots stay and can be restored; the vault keeps its key.
        examples:
          holdfast place remove usb
          holdfast place remove usb --yes
        """)
    _add_name(parser)
    add_options(parser, "--yes")


def _add_name(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", help="the place")
    add_options(parser, "--home", "--json")


def over_places(work: Callable[[BackupPlaces, argparse.Namespace], Awaitable[int]]) -> Run:
    """The `run` of a verb that works over the agent's places, with its vault open."""

    async def main(args: argparse.Namespace) -> int:
        from holdfast.backup.places.backup_places import open_places
        from holdfast.cli.screen.progress import Progress

        with Progress() as news:
            return await work(await open_places(home_of(args), progress=news), args)

    return in_loop(main)


async def _add(places: BackupPlaces, args: argparse.Namespace) -> int:
    from holdfast.backup.places.backup_places import PlaceRequest
    from holdfast.backup.places.place_state import PlaceState
    from holdfast.backup.places.places import shared_domains

    if sys.stderr.isatty():
        talk(f"making a repository at {args.address}: this takes some seconds")
    place = await places.add(
        PlaceRequest(
            name=args.name,
            address=args.address,
            domain=args.domain,
            append_only=args.append_only,
            rsh=args.rsh,
            remote_program=args.remote_borg,
            companion=args.beside,
        )
    )
    if args.json:
        print_json(place_shape(place, PlaceState()))
        return 0
    talk(f"added: {place.name} at {place.repository}")
    for names in shared_domains(places.read()).values():
        talk(f"note: {', '.join(names)} share a failure domain: one failure can destroy all of them")
    if place.append_only:
        talk(APPEND_ONLY)
    talk(
        "next: `holdfast backup now`; then print sheet and card again, because they name the places: "
        "`holdfast paper print`, `holdfast paper card`"
    )
    return 0


APPEND_ONLY = (
    "note: append-only is not immutable: a removal hides a snapshot; its data stays until a user "
    "with permissions on that host compacts the repository"
)


def run_list(args: argparse.Namespace) -> int:
    from holdfast.backup.places.backup_places import states_of
    from holdfast.backup.places.place_state import PlaceState, missing_text, shown
    from holdfast.backup.places.places import read_places, shared_domains
    from holdfast.backup.surfaces import find_absence
    from holdfast.core.clock import SystemClock

    home = home_of(args)
    places = read_places(home.places_file)
    states = states_of(home).read()
    shared = shared_domains(places)
    rows = [(place, states.get(place.name, PlaceState())) for place in places]
    if args.json:
        print_json(
            {
                "places": [place_shape(place, state) for place, state in rows],
                "shared_domains": [list(names) for names in shared.values()],
            }
        )
        return 0
    now = SystemClock().wall_ms()
    print_table(
        ("place", "address", "domain", "verified", "made", "result"),
        [
            (
                place.name,
                place.address,
                place.domain,
                _since(now, state.verified_ms),
                _since(now, state.made_ms),
                "not there now" if find_absence(place) else shown(state)[0] or "-",
            )
            for place, state in rows
        ],
        empty="no places yet; `holdfast place add NAME FOLDER` adds one",
    )
    for place, state in rows:
        if absent := find_absence(place):
            talk(f"{place.name}: {absent.why}")
        if state.missing:
            talk(f"{place.name}: {missing_text(state)}\nhint: {SnapshotsMissing.default_hint}")
    for names in shared.values():
        talk(f"note: {', '.join(names)} share a failure domain: one failure can destroy all of them")
    if any(place.append_only for place in places):
        talk(APPEND_ONLY)
    return 0


async def _check(places: BackupPlaces, args: argparse.Namespace) -> int:
    """One place, or all; the exit code is that of the first that is not well."""
    if args.mark and not args.name:
        raise BadInput("--mark needs the NAME of the place: you confirm that it is the right one")
    codes: list[int] = []
    shapes: list[dict[str, object]] = []
    for name in [args.name] if args.name else [one.name for one in places.read()]:
        try:
            code, shape = await _check_one(places, name, args)
        except HoldfastError as error:
            if args.name:
                raise
            code = error.exit_code
            shape: dict[str, object] = {"name": name, "deep": args.deep, "result": error.code}
            if not args.json:
                talk(f"NOT OK: {name}: {error.message}\nhint: {error.hint}")
        codes.append(code)
        shapes.append(shape)
    if args.json:
        print_json(shapes[0] if args.name else {"places": shapes})
    elif not codes:
        talk("no places yet; `holdfast place add NAME FOLDER` adds one")
    return next((code for code in codes if code), 0)


async def _check_one(places: BackupPlaces, name: str, args: argparse.Namespace) -> tuple[int, dict[str, object]]:
    from holdfast.backup.upkeep.prune import check_place

    if args.mark:
        places.mark(name)
    found = await check_place(places, name, deep=args.deep)
    error = found.error
    code = 0 if error is None else error.exit_code
    if not args.json:
        read = "every chunk was read" if args.deep else "their contents were not read; --deep reads every chunk"
        talk(f"{'NOT OK' if error else 'ok'}: {name}, {len(found.snapshots)} snapshots ({read})")
        if error is not None:
            talk(f"{error.message}\nhint: {error.hint}")
        for text in found.companions if found.missing else ():
            talk(f"companion files: {text}")
    return code, {
        "name": name,
        "deep": args.deep,
        "snapshots": list(found.snapshots),
        "missing": list(found.missing),
        "beside": list(found.companions),
        "result": "ok" if error is None else error.code,
    }


async def _move(places: BackupPlaces, args: argparse.Namespace) -> int:
    from holdfast.backup.places.backup_places import states_of

    place = await places.move(args.name, args.address)
    return finish(
        args, place_shape(place, states_of(places.home).of(place.name)), f"moved: {place.name} is at {place.repository}"
    )


async def _fix_key(places: BackupPlaces, args: argparse.Namespace) -> int:
    await places.mend_key(args.name)
    listing = await places.check(args.name)
    return finish(
        args,
        {"name": args.name, "snapshots": [one.name for one in listing.archives]},
        f"fixed: {args.name} opens again, {len(listing.archives)} snapshots",
    )


async def _break_lock(places: BackupPlaces, args: argparse.Namespace) -> int:
    place = places.get(args.name)
    confirm(args.name, f"Holdfast removes the lock of {place.repository}", yes=args.yes)
    await places.break_lock(args.name)
    return finish(args, {"name": args.name, "repository": place.repository}, f"removed: the lock of {args.name}")


async def _remove(places: BackupPlaces, args: argparse.Namespace) -> int:
    place = places.get(args.name)
    confirm(args.name, f"Holdfast stops backing up to {place.address}; its snapshots stay", yes=args.yes)
    places.remove(args.name)
    return finish(
        args,
        {"name": args.name, "repository": place.repository},
        f"removed: {args.name}; its repository is still at {place.repository}",
    )


def _since(now_ms: int, at_ms: int) -> str:
    from holdfast.backup.upkeep.due import is_ahead

    if is_ahead(at_ms, now_ms=now_ms):
        return f"in {ago(at_ms - now_ms)}: the clock was wrong"
    return ago(now_ms - at_ms) if at_ms else "never"


def place_shape(place: Place, state: PlaceState) -> dict[str, object]:
    from holdfast.backup.places.place_state import shown
    from holdfast.backup.surfaces import find_absence
    from holdfast.core.clock import iso

    result, message = shown(state)
    absent = find_absence(place)
    return {
        "name": place.name,
        "kind": place.kind.value,
        "address": place.address,
        "repository": place.repository,
        "repository_id": place.repository_id,
        "domain": place.domain,
        "append_only": place.append_only,
        "epoch": place.epoch,
        "added": iso(place.added_ms),
        "tried": iso(state.tried_ms),
        "result": result,
        "message": message,
        "failures": state.failures,
        "made": iso(state.made_ms),
        "made_snapshot": state.made,
        "verified": iso(state.verified_ms),
        "verified_snapshot": state.verified,
        "missing": list(state.missing),
        "absent": "" if absent is None else absent.why,
    }
