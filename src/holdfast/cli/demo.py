"""`holdfast demo`: an agent is killed inside a payment and resumes; its machine is lost and it returns."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING

from holdfast.cli.command import Commands, add_flag, add_options, new_command
from holdfast.cli.screen.wrapping import WIDTH_MAX, screen_width, split_lines, wrapped

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.demo.measured import LostMachine
    from holdfast.demo.story import Report

EXIT_BROKEN = 1
SCENES = 6
_WHO_CHARS = 13
_INDENT = 10 + _WHO_CHARS + 1


def add_parser(commands: Commands) -> None:
    parser = new_command(commands, "demo", run).help("""
        An agent books a trip through local payment and mail services, which keep their own counts. The demo kills
        its worker with SIGKILL inside the payment; another worker resumes. Then the same with a letter that cannot
        be looked up: Holdfast asks a person. Then the machine is lost, and the agent returns from 24 words and one of
        two backups. Then two hosts share a journal in PostgreSQL, and one is cut off inside the payment: the other
        continues. Then mail comes for an agent whose machine is lost, and one of its three relays is lost too: it
        returns, reads each message once, and answers. Finally one of two instances of an agent is killed, and the
        other continues with the same memory. Uses only private folders and the loopback network. Exit code 1 if a
        promise broke.
        examples:
          holdfast demo
          holdfast demo --json
          holdfast demo --folder /tmp/trip
        """)
    add_options(parser, "--json")
    add_flag(parser, "--keep", "keep the journal and the ledgers")
    parser.add_argument("--folder", metavar="DIR", help="run in this new or empty folder, and keep it")


def run(args: argparse.Namespace) -> int:
    from holdfast.demo.story import playing

    kept = bool(args.keep or args.folder)
    teller = _Silent() if args.json else _Printed(sys.stdout.isatty())
    with playing(args.folder, kept=kept) as folder:
        report = _play(folder, teller, kept=kept)
    if args.json:
        import json

        print(json.dumps(report.to_json()))
    else:
        for line in summary(report):
            print(wrapped(line, screen_width()) if sys.stdout.isatty() else line)
    return 0 if report.verdict.held else EXIT_BROKEN


def _play(folder: Path, teller: _Silent | _Printed, *, kept: bool) -> Report:
    import asyncio
    import signal

    from holdfast.demo.story import play

    async def main() -> Report:
        task = asyncio.current_task()
        assert task is not None
        # Ended by anything short of SIGKILL, it still takes its processes and folder away.
        for number in (signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
        return await play(folder, teller, kept=kept)

    try:
        return asyncio.run(main())
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


def summary(report: Report) -> list[str]:
    """The figures, for people."""
    verdict = report.verdict
    lines = [
        "",
        "What the far ends counted",
        f"  charges {verdict.charges}   mails {verdict.mails}   letters {verdict.letters}   "
        f"duplicates {verdict.duplicates}   lost {verdict.lost}",
        f"  workers killed {report.kills}   questions to a person {report.asked}   "
        f"decided {report.settled}   still parked {report.parked}",
        f"  from the kill to the next step {report.resume_s:.2f} s   the whole demo {report.seconds:.1f} s",
    ]
    if report.restore_s is not None:
        lines.append(
            f"  same id {_yes(report.identity_same)}   memory kept {_yes(report.memory_kept)}   "
            f"from the words to a running agent {report.restore_s:.1f} s"
        )
    if report.region_resume_s is not None:
        lines.append(f"  from the cut of one host to the next step on the other {report.region_resume_s:.1f} s")
    if report.mail_lost is not None:
        lines.append(
            f"  relays lost {report.relays_lost}   messages lost {report.mail_lost}   "
            f"messages handled twice {report.mail_twice}"
        )
    if report.instance_takeover_s is not None:
        merged = "" if report.memory_merged is None else f"   memory merged {_yes(report.memory_merged)}"
        lines.append(f"  from the kill of an instance to the other's step {report.instance_takeover_s:.1f} s{merged}")
    if report.report is not None:
        lines += _proven(report.report)
    lines.append("")
    lines += [f"BROKEN  {promise}" for promise in verdict.broken] or [_held(report)]
    if report.journal is not None:
        lines.append(f"The journal is kept: holdfast task list --journal {report.journal}")
    return lines


def _proven(found: LostMachine) -> list[str]:
    """The drill report of the lost machine, and the level of the agent that came back."""
    rows = [(what, actual, f" (target {target}: {met})" if met else "") for what, target, actual, met in found.figures]
    width = max(len(what) for what, _, _ in rows)
    figures = [f"  {what:<{width}}  {actual}{judged}" for what, actual, judged in rows]
    level = [f"  {line}" for line in found.level_lines]
    return [
        "",
        f"Drill report of the lost machine: {found.verdict}",
        *figures,
        f"  signed by {found.signed}",
        "",
        "What the agent survives (`holdfast level show`)",
        *level,
    ]


def _held(report: Report) -> str:
    if not report.left_out:
        return "Every promise held."
    lines = [f"{SCENES - len(report.left_out)} of {SCENES} scenes held."]
    for number, why in report.left_out.items():
        borg = number == "3" or why == report.left_out.get("3")
        cure = "run `holdfast doctor --install-borg`, then the demo again" if borg else why
        lines.append(f"Scene {number} was left out: {cure}.")
    return "\n".join(lines)


def _yes(value: bool | None) -> str:
    return "yes" if value else "NO"


class _Silent:
    def scene(self, title: str) -> None: ...

    def tell(self, who: str, what: str, *, at_s: float) -> None: ...


class _Printed:
    """One line per event: when, who, what. Bold only helps the eye; it carries no meaning."""

    def __init__(self, terminal: bool) -> None:
        plain = not terminal or "NO_COLOR" in os.environ or os.environ.get("TERM") == "dumb"
        self._width = screen_width() if terminal else WIDTH_MAX
        self._bold, self._end = ("", "") if plain else ("\x1b[1m", "\x1b[0m")

    def scene(self, title: str) -> None:
        print(f"\n{self._bold}{title}{self._end}", flush=True)

    def tell(self, who: str, what: str, *, at_s: float) -> None:
        strong = who == "kill -9"
        start, end = (self._bold, self._end) if strong else ("", "")
        first, *rest = split_lines(what, self._width - _INDENT)
        print(f"{at_s:6.2f} s  {start}{who:<{_WHO_CHARS}}{end} {first}", flush=True)
        for line in rest:
            print(f"{'':{_INDENT}}{line}", flush=True)
