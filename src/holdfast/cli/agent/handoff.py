"""`holdfast handoff`: the four answers that a successor needs first."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from holdfast.cli.command import Commands, add_options, home_of, new_command
from holdfast.cli.screen.screen import print_json, talk

if TYPE_CHECKING:
    from holdfast.app.handoff import Answer


def add_parser(commands: Commands) -> None:
    parser = new_command(commands, "handoff", run).help("""
        Show what is done, what is pending, what was decided and what changed, from the journal of the agent in this
        folder, and update handoff.md. Without a journal, show handoff.md and its date.
        examples:
          holdfast handoff
          holdfast handoff --home ~/agents/ada --json
        """)
    add_options(parser, "--home", "--json")


def run(args: argparse.Namespace) -> int:
    import asyncio

    from holdfast.app.handoff import read_answer
    from holdfast.core.secret_handles import safe
    from holdfast.memory.handoff import render

    answer = asyncio.run(read_answer(home_of(args)))
    if args.json:
        _print_json(answer)
        return 0
    if answer.source == "file":
        talk(
            "note: there is no journal; this is the text of the file handoff.md, which may be old\n"
            "hint: `holdfast recover` restores the journal from a backup"
        )
    print(safe(render(answer.handoff)), end="")
    return 0


def _print_json(answer: Answer) -> None:
    from holdfast.core.clock import iso

    handoff = answer.handoff
    print_json(
        {
            "agent": handoff.agent,
            "id": handoff.agent_id or None,
            "source": answer.source,
            "as_of": iso(handoff.at_ms),
            "where": list(handoff.where),
            "pending": list(handoff.pending),
            "decided": list(handoff.decided),
            "changed": list(handoff.changed),
        }
    )
