"""`holdfast paper`: the recovery sheets of an agent, and its public card."""

from __future__ import annotations

import argparse
import re
import sys
from typing import TYPE_CHECKING

from holdfast.cli.command import Commands, add_json_option, add_verbs, new_command
from holdfast.cli.input.input_sheet import add_words_options
from holdfast.cli.input.input_slots import add_slot_options

if TYPE_CHECKING:
    from holdfast.identity.acts.paper_sheets import PaperSession
    from holdfast.identity.paper.paper import Sheet

_PARTS = re.compile(r"([0-9]{1,2})of([0-9]{1,2})")


def add_parser(commands: Commands) -> None:
    parser = new_command(
        commands,
        "paper",
        run=None,
        purpose="The recovery sheets of an agent, and its public card. The words of a sheet are "
        "kept nowhere but on paper: they are typed, scanned or piped in, compared with the "
        "agent's key log, and forgotten.",
        examples=(
            "holdfast paper print | lp",
            "holdfast paper verify",
            "holdfast paper list",
            "holdfast paper card | lp",
        ),
    )
    verbs = add_verbs(parser)
    _add_print(verbs)
    _add_verify(verbs)
    _add_list(verbs)
    _add_revoke(verbs)
    _add_replace(verbs)
    _add_card(verbs)


def _add_print(verbs: Commands) -> None:
    parser = new_command(
        verbs,
        "print",
        run=run_print,
        summary="print a sheet, or shares of it",
        purpose="Print a recovery sheet as PDF to standard output, or shares of it. The words are "
        "asked for without showing them. Pages go to a pipe or to memory, never to a disk. "
        "The sheet counts after `holdfast paper verify` has read it back from the paper. Use a "
        "printer of your own: many keep copies, and print services of the cloud always do.",
        examples=(
            "holdfast paper print | lp",
            "holdfast paper print --shares 2of3 --holder Grace --holder Alan | lp",
            "holdfast paper print --hand-copy",
            "holdfast paper print --text --out /dev/shm/sheet.txt",
        ),
    )
    add_home_option(parser)
    add_paper_options(parser)
    parser.add_argument("--shares", metavar="MofN", help="N sheets of which any M are needed, for example 2of3")
    parser.add_argument(
        "--holder",
        metavar="NAME",
        action="append",
        default=[],
        help="whose sheet it is; repeat it for shares, in their order",
    )
    parser.add_argument("--text", action="store_true", help="plain text instead of PDF")
    parser.add_argument("--out", metavar="FILE", help="a new file in memory, such as in /dev/shm")
    parser.add_argument("--hand-copy", action="store_true", help="show the words one by one, and ask them back")


def _add_verify(verbs: Commands) -> None:
    parser = new_command(
        verbs,
        "verify",
        run=run_verify,
        summary="read a sheet back from the paper",
        purpose="Read a sheet back from the paper: typed, scanned, or as the text of its code. "
        "The key that is derived from it must have the digest that the key log names; nothing is "
        "signed. One wrong, missing or swapped word is found. Do it after printing and every 90 "
        "days.",
        examples=(
            "holdfast paper verify --sheet 3",
            "holdfast paper verify --scan page.png",
            "zbarcam -1 --raw | holdfast paper verify --words-fd 0",
        ),
    )
    add_home_option(parser)
    add_paper_options(parser)
    parser.add_argument("--sheet", metavar="NUMBER", help="which sheet it is, where there are more")
    add_json_option(parser)


def _add_list(verbs: Commands) -> None:
    parser = new_command(
        verbs,
        "list",
        run=run_list,
        summary="which sheets there are, and when they were read",
        purpose="Every sheet that was printed. One that was read back more than 90 days ago is "
        "stale: nobody knows whether it can still be read.",
        columns=(
            ("sheet", "the number that is printed on it"),
            ("state", "verified, stale, not verified, revoked"),
            ("printed", "the day"),
            ("verified", "when it was last read back from the paper"),
            ("part", "1 of 1, or so many shares needed and the document they belong to"),
            ("holder", "who keeps it"),
        ),
        examples=("holdfast paper list", "holdfast paper list --json"),
    )
    add_home_option(parser)
    add_json_option(parser)


def _add_revoke(verbs: Commands) -> None:
    parser = new_command(
        verbs,
        "revoke",
        run=run_revoke,
        summary="mark sheets that are lost, seen or destroyed",
        purpose="Mark sheets that count no more; shares of one split go together. This is a note "
        "in the register: the words on a lost sheet keep their power until a further recovery "
        "names other words.",
        examples=("holdfast paper revoke 3", "holdfast paper revoke 4 --yes"),
    )
    parser.add_argument("numbers", metavar="NUMBER", nargs="+", help="as printed on the sheet")
    parser.add_argument("--yes", action="store_true", help="do not ask for the typed word")
    add_home_option(parser)
    add_json_option(parser)


def _add_replace(verbs: Commands) -> None:
    parser = new_command(
        verbs,
        "replace",
        run=run_replace,
        summary="new words: the old ones lose their power",
        purpose=(
            "Make new words, and let the old ones name them: a recovery, signed by the old words,\n"
            "that commits to the new ones. Every running copy is evicted, fresh keys are\n"
            "installed, and the vaults are sealed for the new words.\n\n"
            "Use it when a sheet was lost or seen, or after words were typed on a machine with a\n"
            "network. What the old words could open before (copies of backups) they still open.\n"
            "A run that was cut short is finished by the same command: it asks for the new words\n"
            "that the first one showed."
        ),
        examples=(
            "holdfast paper replace",
            "holdfast paper replace --words-fd 3 --new-words-fd 4 --yes 3< old 4>> /dev/shm/new",
        ),
    )
    add_home_option(parser)
    add_words_options(parser)
    add_slot_options(parser, new=False)
    parser.add_argument(
        "--new-words-fd",
        metavar="N",
        help="write the new words to this descriptor instead of having them copied by hand",
    )
    parser.add_argument(
        "--again-fd", metavar="N", help="an earlier run was cut short: read the new words that it showed from here"
    )
    parser.add_argument("--yes", action="store_true", help="do not ask for the typed word")
    add_json_option(parser)


def _add_card(verbs: Commands) -> None:
    parser = new_command(
        verbs,
        "card",
        run=run_card,
        summary="the public card",
        purpose="Print the public card: id, handles, relays, where backups are, and a code with "
        "the signed records that begin the identity. With a sheet it brings the agent back when "
        "every relay and backup is gone. It holds no secret; print it again after each recovery.",
        examples=("holdfast paper card | lp", "holdfast paper card --text > card.txt"),
    )
    add_home_option(parser)
    parser.add_argument("--text", action="store_true", help="plain text instead of PDF")
    parser.add_argument("--contact", metavar="TEXT", default="", help="whom to ask about the agent")


def add_paper_options(parser: argparse.ArgumentParser) -> None:
    """Where the words of a sheet come from; without them they are typed, unseen."""
    add_words_options(parser)
    parser.add_argument(
        "--sheet-passphrase", action="store_true", help="the sheet says that it has a passphrase: ask for it"
    )
    parser.add_argument(
        "--scan",
        metavar="FILE",
        action="append",
        default=[],
        help="a scanned page, picture or PDF; repeat it for shares (needs zbarimg)",
    )


def add_home_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--home", metavar="DIR", help="the agent's folder (default: $HOLDFAST_HOME, else this one)")


def run_print(args: argparse.Namespace) -> int:
    from holdfast.cli.input.hand_copying import check_person
    from holdfast.cli.input.input_paper import read_paper, read_passphrase
    from holdfast.cli.screen.output_paper import WARNING, check_way_out
    from holdfast.identity.acts.paper_sheets import print_sheets, today

    parts = _parts(args.shares)
    if args.hand_copy:
        check_person()
    else:
        check_way_out(args.out, text=args.text)
    session = _desk(args)
    passphrase = read_passphrase(args)
    words = read_paper(session, args, passphrase)
    with words.phrase:
        _tell_mended(words.change)
        sheets = print_sheets(
            session, words.phrase, date=today(), parts=parts, holders=args.holder, has_passphrase=bool(passphrase)
        )
        if args.hand_copy:
            _copied(session, sheets)
            return 0
        _put(sheets, args)
    numbers = ", ".join(str(one.number) for one in sheets)
    print(WARNING, file=sys.stderr)
    print(f"sheet {numbers}: not complete until it is read back from the paper: holdfast paper verify", file=sys.stderr)
    return 0


def run_verify(args: argparse.Namespace) -> int:
    from holdfast.cli.input.input_paper import read_paper, read_passphrase
    from holdfast.cli.screen.screen import print_json
    from holdfast.identity.acts.paper_sheets import mark_verified, sheets_read, today

    number = None if args.sheet is None else _number(args.sheet)
    session = _desk(args)
    words = read_paper(session, args, read_passphrase(args))
    words.phrase.wipe()
    numbers = sheets_read(session, words, number)
    date = today()
    mark_verified(session, numbers, date=date)
    if args.json:
        print_json(
            {
                "agent": session.identity.name,
                "id": session.log.id,
                "sheets": numbers,
                "verified": date,
                "generation": session.generation,
                "mended": words.change,
            }
        )
        return 0
    _tell_mended(words.change)
    named = ", ".join(map(str, numbers))
    print(f"sheet {named}: right; it recovers {session.identity.name} ({session.log.id})")
    print("write date and name into the table on the sheet", file=sys.stderr)
    return 0


def run_list(args: argparse.Namespace) -> int:
    import msgspec

    from holdfast.cli.screen.screen import print_json, print_table
    from holdfast.identity.acts.paper_sheets import today
    from holdfast.identity.paper.sheets import state_of

    session, now = _desk(args), today()
    sheets = session.register.sheets
    if args.json:
        shown = [{**msgspec.to_builtins(one), "state": state_of(one, now).value} for one in sheets]
        print_json({"sheets": shown, "fresh": session.register.is_fresh(now)})
        return 0
    rows = [
        (
            str(one.number),
            state_of(one, now).value,
            one.date,
            one.verified or "-",
            f"any {one.needed} of document {one.document}" if one.document else "1 of 1",
            one.holder or "-",
        )
        for one in sheets
    ]
    print_table(
        ("sheet", "state", "printed", "verified", "part", "holder"),
        rows,
        empty="no sheet was printed: without one, lost keys are a lost agent",
    )
    return 0


def run_revoke(args: argparse.Namespace) -> int:
    from holdfast.cli.input.confirm import confirm
    from holdfast.cli.screen.screen import print_json, talk
    from holdfast.identity.acts.paper_sheets import mark_revoked, today
    from holdfast.identity.paper.sheets import SheetState, state_of

    session = _desk(args)
    numbers = [_number(one) for one in args.numbers]
    for number in numbers:
        session.register.get(number)
    confirm(
        "revoke",
        f"sheet {', '.join(map(str, numbers))} of {session.identity.name} will be marked as "
        "one that counts no more; it cannot be unmarked",
        yes=args.yes,
    )
    after = mark_revoked(session, numbers, date=today())
    gone = [one.number for one in after.sheets if state_of(one, today()) is SheetState.REVOKED]
    if args.json:
        print_json({"revoked": gone, "left": [one.number for one in after.current()]})
        return 0
    print(f"revoked: {', '.join(map(str, gone))}")
    talk(
        "The words on a revoked sheet keep their power. If somebody else may have seen or taken "
        "it, make new words: holdfast paper replace"
    )
    if not after.current():
        talk("No sheet is left: print one now, or lost keys are a lost agent.")
    return 0


def run_replace(args: argparse.Namespace) -> int:
    from holdfast.cli.paper.replace import run

    return run(args)


def run_card(args: argparse.Namespace) -> int:
    from holdfast.backup.places.places import read_places
    from holdfast.errors import BadInput
    from holdfast.identity.acts.paper_sheets import make_card, today
    from holdfast.identity.paper.paper_pdf import card_pdf
    from holdfast.identity.paper.paper_words import card_text

    session = _desk(args)
    places = [f"{one.name} ({one.repository})" for one in read_places(session.home.places_file)]
    card = make_card(session, date=today(), backups=places, contact=args.contact)
    if args.text:
        print(card_text(card), end="")
        return 0
    if sys.stdout.isatty():
        raise BadInput("a PDF is not for a terminal", hint="pipe it to a file or printer, or --text")
    sys.stdout.flush()
    sys.stdout.buffer.write(card_pdf(card))
    return 0


def _desk(args: argparse.Namespace) -> PaperSession:
    from holdfast.identity.acts.paper_sheets import open_paper
    from holdfast.layout.agent_home import home_folder

    return open_paper(home_folder(args.home))


def _put(sheets: list[Sheet], args: argparse.Namespace) -> None:
    from holdfast.cli.screen.output_paper import put_secret
    from holdfast.identity.paper.paper_pdf import sheet_pdf
    from holdfast.identity.paper.paper_words import sheet_text

    if args.text:
        put_secret("\f".join(map(sheet_text, sheets)).encode(), args.out)
    else:
        put_secret(sheet_pdf(*sheets), args.out)


def _copied(session: PaperSession, sheets: list[Sheet]) -> None:
    from holdfast.cli.input.hand_copying import copy_by_hand
    from holdfast.identity.acts.paper_sheets import mark_verified, today
    from holdfast.identity.paper.paper_words import facts
    from holdfast.identity.paper.phrase import english
    from holdfast.identity.paper.shares import slip39_words

    for sheet in sheets:
        copy_by_hand(facts(sheet), sheet.words, english() if sheet.share is None else slip39_words())
        mark_verified(session, [sheet.number], date=today())
        print(f"sheet {sheet.number}: copied and typed again in full; write the number on it")


def _tell_mended(change: str) -> None:
    if change:
        print(f"mended: {change}; correct the sheet", file=sys.stderr)


def _parts(text: str | None) -> tuple[int, int] | None:
    from holdfast.errors import BadInput

    if text is None:
        return None
    found = _PARTS.fullmatch(text)
    if found is None:
        raise BadInput(f"--shares: {text!r} is not of the form 2of3")
    return int(found[1]), int(found[2])


def _number(word: str) -> int:
    from holdfast.errors import BadInput

    if not word.isascii() or not word.isdigit():
        raise BadInput(f"{word!r} is not the number of a sheet")
    return int(word[:9])
