"""`holdfast tool check`: does a tool's far end keep the promises of its class?"""

from __future__ import annotations

import argparse
import asyncio
import sys
from typing import TYPE_CHECKING, Any

from holdfast.cli.command import Commands, add_flag, add_options, new_noun, new_verb
from holdfast.cli.input.input_journal import journal_of
from holdfast.cli.input.terminal import ask_line
from holdfast.cli.screen.screen import print_json, print_table
from holdfast.errors import BadApp, BadInput

if TYPE_CHECKING:
    from holdfast.app.tool_check import Check, Verdict
    from holdfast.runtime.tool.tool import Tool

EXIT_NOT_PROVEN = 1
AT_ONCE_MAX = 100


def add_parser(commands: Commands) -> None:
    verbs = new_noun(commands, "tool").help("""
        Test whether the far end keeps the promises of the tool's class.
        examples:
          holdfast tool check trip.py:tasks charge '{"card": "tok_test", "cents": 100}' --yes
        """)
    check = new_verb(verbs, "check", run_check).help("""test a tool with a sandbox; print the class it proved

        Send real requests through the tool to a sandbox of its far end: a repeat, another key, several at the same
        time, another body, a refusal, the lookup. Prints what the answers prove. Exit code 0: the declared class is
        proven; 1: it promises more than was proven. Keyed can be proven only with --other.
        columns:
          ok     yes: it behaves as a safe far end does; no: it does not; -: not tried
          habit  what was tried
          seen   what the far end did
        examples:
          holdfast tool check shop.py:tasks charge '{"card": "tok_test", "cents": 100}'
          holdfast tool check shop.py:tasks charge @good.json --other @other.json --refused @declined.json --yes --json
        """)
    check.add_argument("app", metavar="APP", help="module:attribute or path/file.py:attribute")
    check.add_argument("tool", metavar="TOOL", help="name of the tool")
    check.add_argument("args", metavar="ARGS", help="arguments: a JSON object, @file, or - for standard input")
    check.add_argument("--other", metavar="ARGS", help="other valid arguments")
    check.add_argument("--refused", metavar="ARGS", help="arguments that the far end refuses")
    check.add_argument("--at-once", type=int, default=5, metavar="N", help="requests at the same time (default: 5)")
    check.add_argument(
        "--wait", type=float, default=5.0, metavar="S", help="seconds to wait for a busy far end or lookup (default: 5)"
    )
    add_flag(check, "--yes", "do not ask before sending")
    add_options(check, "--journal", "--home", "--json")


def run_check(args: argparse.Namespace) -> int:
    from holdfast.app.binder import open_secrets_alone
    from holdfast.app.loading import load_app
    from holdfast.app.tool_check import TRIABLE
    from holdfast.cli.input.input_values import read_json

    if not 2 <= args.at_once <= AT_ONCE_MAX:
        raise BadInput(f"--at-once must be between 2 and {AT_ONCE_MAX}")
    if not 0 <= args.wait <= 3_600:
        raise BadInput("--wait must be between 0 and 3600 seconds")
    app = load_app(args.app)
    tools = {**{name: one for task in app.tasks.values() for name, one in task.called.items()}, **app.tools}
    tool = tools.get(args.tool)
    if tool is None:
        hint = (
            f"it has: {', '.join(sorted(tools))}" if tools else "its tasks name no tool: holdfast.App(..., tools=[...])"
        )
        raise BadApp(f"the app has no tool {args.tool!r}", hint=hint)
    if not isinstance(tool.effect, TRIABLE):
        raise BadInput(
            f"{tool.name} is {tool.effect.name}: Holdfast cannot test this effect class from outside",
            hint="only Keyed, Queryable and Unrepeatable tools can be checked",
        )
    words = {"ARGS": args.args, "--other": args.other, "--refused": args.refused}
    given = {name: read_json(word, what=name) for name, word in words.items() if word is not None}
    for name, value in given.items():
        if not isinstance(value, dict):
            raise BadInput(f"{name} must be a JSON object")
        given[name] = tool.check_args(
            value  # pyright: ignore[reportUnknownArgumentType] - JSON, keys are text
        )
    if tool.secrets:
        secrets = open_secrets_alone(journal_of(args))
        given = {name: secrets.fill(tool, value) for name, value in given.items()}
    _confirm(args, tool)
    verdict = asyncio.run(_check(args, tool, given))
    _show(verdict, tool, as_json=args.json)
    return 0 if verdict.ok else EXIT_NOT_PROVEN


def _confirm(args: argparse.Namespace, tool: Tool[..., Any]) -> None:
    count = args.at_once + 4 + (args.other is not None) + 2 * (args.refused is not None)
    if args.yes:
        return
    if not sys.stdin.isatty():
        raise BadInput(
            f"this sends {count} real requests through {tool.name}", hint="make the tool call a sandbox, then add --yes"
        )
    question = f"This sends {count} real requests through {tool.name}. Does this tool call a sandbox? [y/N] "
    if ask_line(question).strip().lower() not in ("y", "yes"):
        raise BadInput("nothing was sent")


async def _check(args: argparse.Namespace, tool: Tool[..., Any], given: dict[str, dict[str, Any]]) -> Verdict:
    from holdfast.app.tool_check import Sandbox, judge

    def say(text: str) -> None:
        if not args.json:
            print(f"{text} ...", file=sys.stderr)

    seen = await Sandbox(tool, wait_s=args.wait).check(
        given["ARGS"], other=given.get("--other"), refused=given.get("--refused"), at_once=args.at_once, say=say
    )
    return judge(seen, tool.effect)


def _show(verdict: Verdict, tool: Tool[..., Any], *, as_json: bool) -> None:
    if as_json:
        checks = [{"habit": one.name, "ok": one.ok, "seen": one.text} for one in verdict.checks]
        print_json(
            {
                "tool": tool.name,
                "declared": verdict.declared,
                "proved": verdict.proved,
                "fingerprint": verdict.fingerprint,
                "refusals_stored": verdict.refusals_stored,
                "ok": verdict.ok,
                "refuted": verdict.refuted,
                "checks": checks,
            }
        )
        return
    print_table(("ok", "habit", "seen"), [(_mark(one), one.name, one.text) for one in verdict.checks], empty="")
    fingerprint = f' (fingerprint="{verdict.fingerprint}")' if verdict.fingerprint else ""
    says = "the tool does what it declares" if verdict.ok else "the tool declares more than was proved"
    if not verdict.ok and not verdict.refuted:
        says = f"{verdict.declared} is not refuted; give --other ARGS to prove it"
    print(f"\nproved: {verdict.proved}{fingerprint}; declared: {verdict.declared}: {says}")


def _mark(check: Check) -> str:
    return "-" if check.ok is None else "yes" if check.ok else "no"
