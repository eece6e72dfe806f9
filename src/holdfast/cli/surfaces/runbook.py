"""`holdfast runbook`: what to do per failure, with this agent's real names, to be printed."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from holdfast.cli.command import Commands, add_options, new_noun, new_verb
from holdfast.cli.screen.screen import print_json, shown, talk
from holdfast.cli.signals import in_loop
from holdfast.cli.surfaces.surface import any_home, look_at, surface_shape

if TYPE_CHECKING:
    from holdfast.layout.agent_home import AgentHome
    from holdfast.surfaces.register import Register
    from holdfast.surfaces.runbook import RunbookFacts

SIGN = b"holdfast runbook print"  # every runbook says how it was made
PAGE_BYTES_MAX = 16 << 20
ANY_APP = "APP"  # for a person to fill in


def add_parser(commands: Commands) -> None:
    verbs = new_noun(commands, "runbook").help("""
        The runbook of an agent: what to do for each failure, with its real names, places and commands.
        examples:
          holdfast runbook print
          holdfast runbook print --html runbook.html
        """)
    parser = new_verb(verbs, "print", in_loop(_print)).help("""what to do for each failure, to be printed

        Print the runbook of this agent as Markdown: for each failure who decides, what you need, the commands with the
        agent's real names and places, what you should see, how long the last drill took, and how to tell that it
        worked; then the secrets to rotate, and the commands of Borg and age that read the backups without Holdfast.
        The steps are the ones that `holdfast drill run` executes. No secret is on the page. Print it on paper and keep
        it with the recovery sheet.
        examples:
          holdfast runbook print --app trip.py:tasks
          holdfast runbook print --html runbook.html --app trip.py:tasks
          holdfast runbook print --json
        """)
    parser.add_argument("--html", metavar="FILE", default="", help="write one HTML file, which prints on A4")
    parser.add_argument("--out", metavar="FILE", default="", help="write the Markdown to this file")
    parser.add_argument(
        "--app", metavar="APP", default=ANY_APP, help="the app that your worker runs, as for `holdfast worker`"
    )
    add_options(parser, "--home", "--json")


async def _print(args: argparse.Namespace) -> int:
    from msgspec import to_builtins

    from holdfast.surfaces import page
    from holdfast.surfaces.runbook import make_runbook, runbook_blocks, runbook_title

    facts = gather(any_home(args), await look_at(args), app=_app_of(args.app))
    runbook = make_runbook(facts)
    if args.json:
        print_json({**to_builtins(runbook), "where": [surface_shape(one) for one in runbook.where]})
        return 0
    blocks = runbook_blocks(runbook, facts.scripts)
    text = shown(page.markdown(blocks))
    if args.html:
        _write(args.html, shown(page.html(runbook_title(runbook), blocks)))
    if args.out:
        _write(args.out, text)
    if not (args.html or args.out):
        print(text, end="")
    talk(runbook.keep)
    return 0


def _app_of(text: str) -> str:
    """The app as it is printed: at night the page is read in another folder. Raises BadApp where there is none."""
    from importlib.util import find_spec

    from holdfast.cli.input.agent_places import path_of
    from holdfast.errors import BadApp

    place, colon, attribute = text.rpartition(":")
    if text == ANY_APP:
        return text
    if not (colon and place and attribute):
        raise BadApp(f"{text!r} is not an app")
    if place.endswith(".py"):
        path = path_of(place)
        if not path.is_file():
            raise BadApp(f"there is no file {path}")
        return f"{path}:{attribute}"
    try:
        found = find_spec(place)
    except (ImportError, ValueError):
        found = None
    if found is None:
        raise BadApp(f"module {place!r} cannot be found")
    return text


def gather(home: AgentHome, register: Register, *, app: str) -> RunbookFacts:
    """What the page says, from the agent's folder. What cannot be read is left out; the register says why."""
    import contextlib

    from holdfast.backup.places.places import read_places
    from holdfast.backup.surfaces import is_on_disk_of
    from holdfast.errors import HoldfastError
    from holdfast.host.version import find_version
    from holdfast.identity.files.own_log import find_own_log
    from holdfast.identity.records.ed25519 import Sodium
    from holdfast.surfaces.report import read_reports
    from holdfast.surfaces.runbook import RunbookFacts

    places, log, drills = (), None, ()
    with contextlib.suppress(HoldfastError, OSError):
        places = read_places(home.places_file)
    with contextlib.suppress(HoldfastError, OSError):
        log = find_own_log(home.folder, Sodium())
    with contextlib.suppress(HoldfastError, OSError):
        drills = read_reports(home)
    beside = frozenset(one.name for one in places if is_on_disk_of(home.state, one))
    return RunbookFacts(
        home=home,
        id="" if log is None else log.id,
        places=places,
        best=min(places, key=lambda one: one.name in beside, default=None),
        beside=beside,
        register=register,
        drills=drills,
        scripts=read_scripts(),
        version=find_version(),
        app=app,
    )


def read_scripts() -> dict[str, str]:
    """The programs of the page about plain Borg and age: what is tested there is what is printed here."""
    import re

    from holdfast.cli.explain import pages_folder
    from holdfast.surfaces.runbook import SCRIPTS

    text = (pages_folder() / "how-to" / "restore-with-borg.md").read_text()
    return {
        name: found[1]
        for name in SCRIPTS
        if (found := re.search(rf"^```python file={re.escape(name)}\n(.*?)^```", text, re.MULTILINE | re.DOTALL))
    }


def _write(name: str, text: str) -> None:
    """Replace an older runbook; any other file is refused."""
    from holdfast.cli.input.agent_places import path_of
    from holdfast.errors import BadInput
    from holdfast.host.private_files import read_plain, write_atomically

    path = path_of(name)
    try:
        if path.exists() and SIGN not in read_plain(path, PAGE_BYTES_MAX):
            raise BadInput(f"{path} is not a runbook", hint="name a new file")
        write_atomically(path, text.encode())
    except OSError as error:
        raise BadInput(f"{path} cannot be written: {error.strerror}") from error
    talk(f"written: {path}")
