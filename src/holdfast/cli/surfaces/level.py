"""`holdfast level`: how much of the agent would survive, from 0 to 4, and whether that is proven."""

from __future__ import annotations

import argparse
import contextlib
from typing import TYPE_CHECKING

from holdfast.cli.command import Commands, add_flag, add_options, new_noun, new_verb
from holdfast.cli.screen.screen import print_json, print_lines, print_table, talk
from holdfast.cli.signals import in_loop
from holdfast.cli.surfaces.surface import any_home, look_at, with_home
from holdfast.core.clock import iso
from holdfast.core.surfaces import day_of
from holdfast.errors import BadInput, HoldfastError

if TYPE_CHECKING:
    from holdfast.surfaces.level import GateResult, LevelReport

EXIT_BELOW = 1
HISTORY_SHOWN = 20


def add_parser(commands: Commands) -> None:
    verbs = new_noun(commands, "level").help("""
        The level says what the agent survives: 0 ephemeral, 1 file-backed, 2 backed up, 3 identity-portable,
        4 distributed. Proof is a second mark: it has a date, and it expires.
        examples:
          holdfast level show
          holdfast level show --min 2 --proven
        """)
    parser = new_verb(verbs, "show", in_loop(_show)).help("""the level, every gate, and the one next action

        Show the level of this agent, whether it is proven and until when, every gate with its evidence, and the one
        command to run next. Holdfast computes it from what it finds; you cannot set a gate by hand. Each change is
        added to levels.jsonl in the agent's folder. With --min the exit code is 1 below that level.
        columns:
          gate      its name, as in `holdfast explain levels`
          level     which level needs it; proof: only the proof of that level does; -: none
          state     ok or no
          until     when it expires
          evidence  what was found; of a gate that does not hold, why
        examples:
          holdfast level show
          holdfast level show --min 3 --proven --json
        """)
    parser.add_argument("--min", type=int, choices=range(5), metavar="N", help="exit with 1 below this level, 0 to 4")
    add_flag(parser, "--proven", "with --min: the level must be proven too")
    add_options(parser, "--home", "--json")


async def _show(args: argparse.Namespace) -> int:
    from holdfast.surfaces.history import note_level, read_history

    if args.proven and args.min is None:
        raise BadInput("--proven needs --min: which level must be proven?", hint="for example --min 2 --proven")
    found, home = await look_at(args, deep=False), any_home(args)
    report = found.level
    if home.name:
        with contextlib.suppress(HoldfastError, OSError):  # a folder that cannot be written can be looked at
            note_level(home, report, now_ms=found.at_ms)
    if args.json:
        history = [
            {"at": iso(one.at_ms), "level": one.level, "proven_level": one.proven_level, "text": one.text}
            for one in read_history(home)[-HISTORY_SHOWN:]
        ]
        print_json(
            {**level_shape(report), "rto_s": found.targets.rto_s, "rpo_s": found.targets.rpo_s, "history": history}
        )
    else:
        _print(report, args)
    reached = report.proven_level if args.proven else report.level
    if args.min is None or reached >= args.min:
        return 0
    if not args.json:
        talk(f"below level {args.min}{', proven' if args.proven else ''}")
    return EXIT_BELOW


def level_shape(report: LevelReport) -> dict[str, object]:
    following = report.next
    return {
        "level": report.level,
        "name": report.name,
        "meaning": report.meaning,
        "proven": report.proven,
        "proven_level": report.proven_level,
        "proven_until": iso(report.proven_until_ms or 0),
        "text": report.text,
        "next": None if following is None else {"gate": following.id, "why": following.why, "command": following.fix},
        "gates": [_gate_shape(one) for one in report.gates],
    }


def _gate_shape(one: GateResult) -> dict[str, object]:
    return {
        "id": one.id,
        "level": one.level,
        "proof": one.proof,
        "text": one.text,
        "ok": one.ok,
        "evidence": one.evidence,
        "evidence_at": iso(one.evidence_ms or 0),
        "until": iso(one.until_ms or 0),
        "why": one.why,
        "fix": one.fix,
    }


def _print(report: LevelReport, args: argparse.Namespace) -> None:
    print_lines(report.text, f"{report.name}: {report.meaning}")
    if report.next is not None:
        print_lines(f"next: {with_home(report.next.fix, args)}", f"      because {report.next.why}")
    rows = [
        (
            one.id,
            "-" if one.level is None else f"{one.level}{' proof' if one.proof else ''}",
            "ok" if one.ok else "no",
            day_of(one.until_ms) if one.until_ms else "-",
            one.evidence if one.ok else one.why,
        )
        for one in report.gates
    ]
    print_table(("gate", "level", "state", "until", "evidence"), rows, empty="there are no gates")
