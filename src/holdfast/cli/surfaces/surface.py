"""`holdfast surface`: every place where state of the agent is, and whether it could be recovered."""

from __future__ import annotations

import argparse
import shlex
from typing import TYPE_CHECKING

from holdfast.cli.command import Commands, add_options, new_noun, new_verb
from holdfast.cli.screen.screen import print_json, print_table, talk
from holdfast.cli.signals import in_loop
from holdfast.core.clock import iso
from holdfast.core.surfaces import Surface, Verdict, day_of

if TYPE_CHECKING:
    from holdfast.layout.agent_home import AgentHome
    from holdfast.surfaces.register import Register

NO_HOME = ("adopt", "explain")  # commands without the option
WORST_FIRST = (Verdict.UNCOVERED, Verdict.AT_RISK, Verdict.COVERED)


def add_parser(commands: Commands) -> None:
    verbs = new_noun(commands, "surface").help("""
        Surfaces: the places where state of the agent is. A surface that is not covered is lost with its machine.
        examples:
          holdfast surface list
          holdfast surface list --json
        """)
    parser = new_verb(verbs, "list", in_loop(_list)).help("""every surface, the worst first

        List every place where state of this agent is: keys, paper, journal, backups, memory, secrets, model endpoints
        and what your project names under [surfaces]. Holdfast finds them by looking, each time. It opens no backup and
        changes nothing.
        columns:
          surface     its id
          verdict     covered; at risk: protected, but the evidence is old or missing; uncovered: nothing protects it
          protection  what brings it back
          evidence    when it was last seen that this works
          why         the reason for the verdict; below it the command that fixes it
        examples:
          holdfast surface list
          holdfast surface list --home ~/agents/ada --json
        """)
    add_options(parser, "--home", "--json")


async def _list(args: argparse.Namespace) -> int:
    found = await look_at(args)
    rows = sorted(found.surfaces, key=lambda one: (WORST_FIRST.index(one.verdict), one.id))
    counts = {verdict.value: sum(one.verdict is verdict for one in rows) for verdict in WORST_FIRST}
    if args.json:
        print_json({"counts": counts, "surfaces": [surface_shape(one) for one in rows]})
        return 0
    cells = [(one.id, one.verdict.value, one.protection or "nothing", _evidence(one), _why(one, args)) for one in rows]
    columns = ("surface", "verdict", "protection", "evidence", "why")
    print_table(columns, cells, empty="there is no agent here; `holdfast init NAME` makes one", state="verdict")
    talk(", ".join(f"{count} {verdict}" for verdict, count in counts.items()))
    return 0


async def look_at(args: argparse.Namespace, *, deep: bool = True) -> Register:
    """One look at the agent of --home, or at the folder where there is none."""
    from holdfast.surfaces.register import look_now

    return await look_now(any_home(args), deep=deep)


def any_home(args: argparse.Namespace) -> AgentHome:
    """The agent of --home; a folder that has none is an agent without a name. Raises NotAnAgent where --home
    names no folder."""
    from holdfast.errors import NotAnAgent
    from holdfast.layout.agent_home import AgentHome, find_home, home_folder
    from holdfast.layout.journal_location import journal_in

    folder = home_folder(args.home)
    if args.home and not folder.is_dir():  # $HOLDFAST_HOME may name one that is made next
        raise NotAnAgent(f"there is no folder {folder}")
    return find_home(folder) or AgentHome(folder=folder, name="", journal_url=journal_in(folder).url)


def surface_shape(one: Surface) -> dict[str, object]:
    fields = ("id", "kind", "holds", "where", "owner", "protection", "domain", "rpo_s", "rto_s", "evidence")
    return {
        **{name: getattr(one, name) for name in fields},
        "evidence_at": iso(one.evidence_ms or 0),
        "verdict": one.verdict.value,
        "why": one.why,
        "fix": one.fix,
    }


def _evidence(one: Surface) -> str:
    return "-" if not one.evidence_ms else day_of(one.evidence_ms)


def _why(one: Surface, args: argparse.Namespace) -> str:
    return f"{one.why}; fix: {with_home(one.fix, args)}" if one.fix else one.why


def with_home(command: str, args: argparse.Namespace) -> str:
    """The command as it can be copied: for the agent of --home, if one was given."""
    known = not command.startswith("holdfast ") or command.split()[1] in NO_HOME or "--home" in command
    return command if known or not args.home else f"{command} --home {shlex.quote(args.home)}"
