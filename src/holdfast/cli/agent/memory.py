"""`holdfast memory`: what the agent in this folder remembers."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from holdfast.cli.command import Commands, add_flag, add_options, home_of, new_noun, new_verb
from holdfast.cli.screen.screen import one_line, print_json, print_table, shown, talk
from holdfast.errors import BadInput

if TYPE_CHECKING:
    from holdfast.app.memory import MissingFile
    from holdfast.layout.agent_home import AgentHome

LIMIT = 20


def add_parser(commands: Commands) -> None:
    verbs = new_noun(commands, "memory").help("""
        What the agent in this folder remembers: MEMORY.md, and one log per day in memory/. You may edit the files
        at any time; a running agent keeps your edits.
        examples:
          holdfast memory add "The landlord answers on Mondays" --to MEMORY
          holdfast memory search landlord
        """)
    parser = new_verb(verbs, "add", run_add).help("""add a line

        Add one line to today's log or to MEMORY.md. If there is a journal, Holdfast writes the line
        through it, even while a worker runs; otherwise it writes straight into the file.
        examples:
          holdfast memory add "Moved the meeting to Friday"
          echo 'Never call before nine' | holdfast memory add - --to MEMORY
        """)
    parser.add_argument("text", metavar="TEXT", help="the line to add; - reads it from standard input")
    parser.add_argument("--to", choices=("day", "MEMORY"), default="day", help="day (today's log; default) or MEMORY")
    parser.add_argument("--origin", metavar="WHO", default="user", help="who wrote the line (default: user)")
    add_options(parser, "--home", "--json")
    parser = new_verb(verbs, "search", run_search).help("""find lines

        Find the lines of MEMORY.md and of the daily logs that match these words, best match first.
        columns:
          file    file and line number; waits: in the journal, not yet in the file
          day     when it was said, if known
          origin  who said it; file: written by hand
          text    the line
        examples:
          holdfast memory search landlord
          holdfast memory search rent --since 2026-11-01
        """)
    parser.add_argument("words", metavar="WORD", nargs="+", help="words to search for")
    parser.add_argument("--since", metavar="DAY", default="", help="only lines from this day on")
    parser.add_argument("--limit", type=int, default=LIMIT, help=f"show at most this many lines (default: {LIMIT})")
    add_options(parser, "--home", "--json")
    parser = new_verb(verbs, "show", run_show).help("""print the memory

        Print MEMORY.md or the log of a day; with --start, the summary that an agent gets when it starts. Needs no
        journal.
        examples:
          holdfast memory show
          holdfast memory show 2026-11-15
          holdfast memory show --start
        """)
    parser.add_argument("day", metavar="DAY", nargs="?", default="", help="print this day's log (default: MEMORY.md)")
    add_flag(parser, "--start", "the summary that an agent gets when it starts")
    add_options(parser, "--home", "--json")
    parser = new_verb(verbs, "blame", run_blame).help("""who brought each line in

        Print MEMORY.md or the log of a day with the origin of each line. The instance is known only if several
        instances share the memory. An empty field means that it is not known.
        columns:
          line      line number
          origin    who said it; file: written by hand
          at        when, if known
          task      the task that said it, if known
          instance  the instance that brought the line in, if known
          text      the line
        examples:
          holdfast memory blame
          holdfast memory blame 2026-11-15 --json
        """)
    parser.add_argument("day", metavar="DAY", nargs="?", default="", help="of this day's log (default: MEMORY.md)")
    add_options(parser, "--home", "--json")
    parser = new_verb(verbs, "folders", run_folders).help("""which folders hold the memory

        List the folders into which Holdfast writes this agent's memory; with a journal that several hosts share, each
        host has one. The journal keeps a line until every folder in this list has it. If a folder is gone for good,
        remove it from the list with --forget. Holdfast deletes no file.
        columns:
          id      names the folder in the journal
          where   host and folder
          lines   lines that wait to be written there
          written when a line was last written there
        examples:
          holdfast memory folders
          holdfast memory folders --forget 3f2a
        """)
    parser.add_argument("--forget", metavar="ID", default="", help="remove this folder; the first letters are enough")
    add_options(parser, "--home", "--json")


def run_add(args: argparse.Namespace) -> int:
    import asyncio
    import sys

    from holdfast.app.memory import add_line

    text = sys.stdin.read() if args.text == "-" else args.text
    done = asyncio.run(add_line(home_of(args), text=text, to=args.to, origin=args.origin))
    if args.json:
        print_json(done)
        return 0
    if done.written:
        print(f"{done.file}: added ({done.id})")
    else:
        talk(f"note: the line is in the journal, but not yet in {done.file}: {done.why}")
        if done.hint:
            talk(f"hint: {done.hint}")
        talk("hint: a worker, or the next `holdfast memory add`, writes the line to the file")
    return 0


def run_search(args: argparse.Namespace) -> int:
    import asyncio

    from msgspec.structs import replace

    from holdfast.app.memory import search
    from holdfast.core.secret_handles import safe

    if args.limit < 1:
        raise BadInput("--limit must be at least 1")
    words = " ".join(args.words)
    found = asyncio.run(search(home_of(args), words, limit=args.limit, since=args.since))
    if args.json:
        print_json({"lines": [replace(one, text=safe(one.text)) for one in found.lines], "unread": found.unread})
        return 0
    rows = [(f"{one.file}:{one.line or 'waits'}", one.day, one.origin, one_line(one.text)) for one in found.lines]
    where = " in the files that could be read" if found.unread else ""
    empty = f"no line matches{where}; `holdfast memory show` prints MEMORY.md"
    print_table(("file", "day", "origin", "text"), rows, empty=empty)
    for one in found.unread:
        talk(f"NOT SEARCHED: {one.file}: {one.why}")
        if one.hint:
            talk(f"hint: {one.file}: {one.hint}")
    return 0


def run_blame(args: argparse.Namespace) -> int:
    import asyncio

    from holdfast.app.blame import blame
    from holdfast.layout.agent_home import DAYS, MEMORY_FILE
    from holdfast.memory.lines import check_day

    name = f"{DAYS}/{check_day(args.day)}.md" if args.day else MEMORY_FILE
    found = asyncio.run(blame(home_of(args), name))
    if args.json:
        print_json({"file": name, "lines": found})
        return 0
    rows = [(str(one.line), one.origin, one.at, one.task, one.instance, one_line(one.text)) for one in found]
    print_table(("line", "origin", "at", "task", "instance", "text"), rows, empty=f"{name} has no line")
    return 0


def run_folders(args: argparse.Namespace) -> int:
    import asyncio

    from holdfast.app.memory import list_folders
    from holdfast.core.clock import iso

    found = asyncio.run(list_folders(home_of(args), forget=args.forget))
    if args.json:
        print_json({"folders": found.folders, "forgotten": found.forgotten})
        return 0
    if found.forgotten:
        print(f"forgot {found.forgotten}")
    rows = [(one.id, one.where, str(one.waiting), iso(one.at_ms)) for one in found.folders]
    print_table(("id", "where", "lines", "written"), rows, empty="no line was written to a memory file yet")
    return 0


def run_show(args: argparse.Namespace) -> int:
    from holdfast.core.clock import SystemClock
    from holdfast.core.secret_handles import safe
    from holdfast.layout.agent_home import MemoryPlace
    from holdfast.memory.exchange import read_quiet
    from holdfast.memory.lines import check_day, parsed
    from holdfast.memory.sidecar import read_reports
    from holdfast.memory.start_text import start_text

    home = home_of(args)
    place = MemoryPlace(folder=home.folder)
    if args.start:
        tokens = home.settings.memory.tokens
        text = start_text(place, tokens=tokens, now_ms=SystemClock().wall_ms())
        if args.json:
            print_json({"start": safe(text), "tokens": tokens})
        else:
            print(shown(text))
        return 0
    path = place.day_file(check_day(args.day)) if args.day else place.memory_file
    raw = read_quiet(path)
    text = (raw or b"").decode(errors="replace")
    log = parsed(text, day=args.day)
    name = path.relative_to(home.folder)
    if args.json:
        lines = [
            {"line": number, "text": safe(one.text), "origin": one.origin, "day": one.day, "id": one.id}
            for number, one in log.lines
        ]
        reports = [one for one in read_reports(place.report) if one.get("file") == str(name)]
        gone = None if raw is not None else _missing(home, str(name))
        print_json({"file": str(name), "lines": lines, "torn": log.torn, "merges": reports, "gone": gone})
        return 0
    if raw is None:
        _report_missing(home, str(name))
    if log.torn:
        talk(f"note: the last line of {name} is incomplete: a program may have died while writing it")
    print(shown(text), end="" if text.endswith("\n") or not text else "\n")
    return 0


def _missing(home: AgentHome, name: str) -> MissingFile:
    import asyncio

    from holdfast.app.memory import look_for_missing

    return asyncio.run(look_for_missing(home, name))


def _report_missing(home: AgentHome, name: str) -> None:
    """Say whether the file never existed or is lost, and how to get it back."""
    gone = _missing(home, name)
    if gone.why:
        talk(f"note: the journal cannot be read: {gone.why}")
    if not (gone.known or gone.waiting or gone.lost):
        talk(f"note: there is no {name} yet")
        return
    if gone.known:
        talk(f"note: {name} is missing; Holdfast still has the {gone.known} lines that it last wrote to this file")
    if gone.waiting:
        talk(f"note: {gone.waiting} lines for {name} wait in the journal")
    if gone.known or gone.waiting:
        talk(f"hint: the next worker, or `holdfast memory add`, writes {name} again")
        talk(f"hint: if you do not want that, make an empty file {name}")
    if gone.lost:
        talk(f"note: {name} is missing; Holdfast cannot write {gone.lost} of its lines again")
        talk(f"hint: `holdfast recover --file {name} --to FOLDER` restores it from a backup")
