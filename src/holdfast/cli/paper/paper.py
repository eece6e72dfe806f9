"""`holdfast paper`: the recovery sheets of an agent, and its public card."""

from __future__ import annotations

import argparse
import re
import sys
from typing import TYPE_CHECKING

from holdfast.cli.command import Commands, add_flag, add_list, add_options, imported, new_noun, new_verb
from holdfast.cli.input.input_sheet import add_words_options
from holdfast.cli.input.input_slots import add_slot_options
from holdfast.cli.input.terminal import confirm
from holdfast.cli.screen.screen import print_json, print_table, talk
from holdfast.errors import BadInput

if TYPE_CHECKING:
    from holdfast.identity.acts.paper_sheets import PaperSession
    from holdfast.identity.paper.paper import Sheet

_PARTS = re.compile(r"([0-9]{1,2})of([0-9]{1,2})")


def add_parser(commands: Commands) -> None:
    verbs = new_noun(commands, "paper").help("""
        The recovery sheets of an agent, and its public card. The words exist only on paper: you type, scan or pipe
        them in, and Holdfast compares them with the agent's key log and forgets them.
        examples:
          holdfast paper print | lp
          holdfast paper verify
          holdfast paper list
          holdfast paper card | lp
        """)
    parser = new_verb(verbs, "print", run_print).help("""print a sheet, or shares

        Print a recovery sheet, or shares of it, as PDF to standard output. Holdfast asks for the words without
        showing them. Pages go to a pipe or to memory, never to a disk. The sheet counts after `holdfast paper
        verify` has read it back from the paper. Use your own printer: many printers keep copies, and cloud print
        services always do.
        examples:
          holdfast paper print | lp
          holdfast paper print --shares 2of3 --holder Grace --holder Alan | lp
          holdfast paper print --hand-copy
          holdfast paper print --text --out /dev/shm/sheet.txt
        """)
    add_options(parser, "--home")
    add_paper_options(parser)
    parser.add_argument("--shares", metavar="MofN", help="make N sheets; any M of them give the words: 2of3")
    add_list(parser, "--holder", "NAME", "who gets the sheet; for shares give it once per share, in order")
    add_flag(parser, "--text", "plain text instead of PDF")
    parser.add_argument("--out", metavar="FILE", help="write to this new file in memory, such as in /dev/shm")
    add_flag(parser, "--hand-copy", "show the words one by one to copy by hand, then ask for them")
    parser = new_verb(verbs, "verify", run_verify).help("""read a sheet back from the paper

        Read a sheet back from the paper: typed, scanned, or as the text of its code. Holdfast derives the key and
        compares its digest with the key log; it signs nothing. It finds one wrong, missing or swapped word. Do this
        after printing and every 90 days.
        examples:
          holdfast paper verify --sheet 3
          holdfast paper verify --scan page.png
          zbarcam -1 --raw | holdfast paper verify --words-fd 0
        """)
    add_options(parser, "--home")
    add_paper_options(parser)
    parser.add_argument(
        "--sheet", metavar="NUMBER", help="number of the sheet that you read (default: the newest with these words)"
    )
    add_options(parser, "--json")
    parser = new_verb(verbs, "list", run_list).help("""list the sheets, and when each was last read back

        List every printed sheet. A sheet that was last read back more than 90 days ago is stale: it may no longer
        be readable.
        columns:
          sheet     the number printed on it
          state     verified, stale, not verified, revoked
          printed   when
          verified  when it was last read back from the paper
          part      1 of 1; for shares, how many are needed and the document they belong to
          holder    who keeps it
        examples:
          holdfast paper list
          holdfast paper list --json
        """)
    add_options(parser, "--home", "--json")
    parser = new_verb(verbs, "revoke", run_revoke).help("""mark sheets as lost, seen or destroyed

        Mark sheets that no longer count; shares of one split are marked together. This only changes the register:
        the words on a lost sheet stay valid until `holdfast paper replace` makes new ones.
        examples:
          holdfast paper revoke 3
          holdfast paper revoke 4 --yes
        """)
    parser.add_argument("numbers", metavar="NUMBER", nargs="+", help="the number that is printed on the sheet")
    add_options(parser, "--yes", "--home", "--json")
    parser = new_verb(verbs, "replace", imported("paper.replace")).help("""
        make new recovery words; the old ones become invalid

        Make new recovery words. The old words sign a recovery that names the new ones. This evicts every running
        copy, installs new keys, and seals the vaults for the new words.

        Use it when a sheet was lost or seen by others, or after the words were typed on a machine with a network.
        The old words still open what they could open before (copies of backups). If a run is interrupted, run the
        same command again: it asks for the new words that the first run showed.
        examples:
          holdfast paper replace
          holdfast paper replace --words-fd 3 --new-words-fd 4 --yes 3< old 4>> /dev/shm/new
        """)
    add_options(parser, "--home")
    add_words_options(parser)
    add_slot_options(parser, new=False)
    parser.add_argument(
        "--new-words-fd", metavar="N", help="write the new words to this descriptor (default: you copy them by hand)"
    )
    parser.add_argument(
        "--again-fd",
        metavar="N",
        help="if an earlier run was interrupted: read the new words that it showed from this descriptor",
    )
    add_options(parser, "--yes", "--json")
    parser = new_verb(verbs, "card", run_card).help("""print the public card

        Print the public card: id, handles, relays, where backups are, and the signed records that begin the identity
        and recovered it, as QR codes. With a sheet, it restores the identity when every relay and backup is lost. It
        contains no secret; print it again after each recovery. After several recoveries it has several pages.
        examples:
          holdfast paper card | lp
          holdfast paper card --text > card.txt
        """)
    add_options(parser, "--home")
    add_flag(parser, "--text", "plain text instead of PDF")
    parser.add_argument("--contact", metavar="TEXT", default="", help="text for the card: whom to ask about the agent")


def add_paper_options(parser: argparse.ArgumentParser) -> None:
    """Where the words of a sheet come from; by default a person types them."""
    add_words_options(parser)
    add_flag(parser, "--sheet-passphrase", "if the sheet says that it has a passphrase: ask for it")
    add_list(parser, "--scan", "FILE", "a scanned page, image or PDF; repeatable, for shares (needs zbarimg)")


def run_print(args: argparse.Namespace) -> int:
    from holdfast.cli.input.input_paper import read_paper, read_passphrase
    from holdfast.cli.screen.output_paper import WARNING, check_way_out
    from holdfast.cli.screen.output_words import check_person
    from holdfast.identity.acts.paper_sheets import print_sheets, today

    parts = _parts(args.shares)
    if args.hand_copy:
        check_person()
    else:
        check_way_out(args.out, text=args.text)
    session = _session(args)
    passphrase = read_passphrase(args)
    words = read_paper(session, args, passphrase)
    with words.phrase:
        _report_corrected(words.change)
        sheets = print_sheets(
            session,
            words.phrase,
            date=today(),
            parts=parts,
            holders=args.holder,
            has_passphrase=bool(passphrase),
            backups=_places(session),
        )
        if args.hand_copy:
            _copied(session, sheets)
            return 0
        _put(sheets, args)
    numbers = ", ".join(str(one.number) for one in sheets)
    talk(WARNING)
    talk(f"sheet {numbers} counts only after you read it back from the paper: `holdfast paper verify`")
    return 0


def run_verify(args: argparse.Namespace) -> int:
    from holdfast.cli.input.input_paper import read_paper, read_passphrase
    from holdfast.identity.acts.paper_sheets import sheets_read, today

    number = None if args.sheet is None else _number(args.sheet)
    session = _session(args)
    words = read_paper(session, args, read_passphrase(args))
    words.phrase.wipe()
    numbers = sheets_read(session, words, number)
    date = today()
    signed = _note_read(session, numbers, date)
    if args.json:
        print_json(
            {
                "agent": session.identity.name,
                "id": session.log.id,
                "sheets": numbers,
                "verified": date,
                "generation": session.generation,
                "mended": words.change,
                "signed": signed,
            }
        )
        return 0
    _report_corrected(words.change)
    named = ", ".join(map(str, numbers))
    print(f"sheet {named}: correct; it recovers {session.identity.name} ({session.log.id})")
    talk("write the date and your name into the table on the sheet")
    if number is None and not words.shares and sum(not one.document for one in session.register.current()) > 1:
        talk("other sheets hold the same words; if you read another one, name it with --sheet NUMBER")
    return 0


def run_list(args: argparse.Namespace) -> int:
    import msgspec

    from holdfast.identity.acts.paper_sheets import today
    from holdfast.identity.paper.sheets import state_of

    session, now = _session(args), today()
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
        empty="no sheet was printed: without one, losing the keys means losing the agent",
    )
    return 0


def run_revoke(args: argparse.Namespace) -> int:
    from holdfast.identity.acts.paper_sheets import mark_revoked, today
    from holdfast.identity.paper.sheets import SheetState, state_of

    session = _session(args)
    numbers = [_number(one) for one in args.numbers]
    for number in numbers:
        session.register.get(number)
    named = ", ".join(map(str, numbers))
    what = f"sheet {named} of {session.identity.name} will be marked as revoked; this cannot be undone"
    confirm("revoke", what, yes=args.yes)
    after = mark_revoked(session, numbers, date=today())
    gone = [one.number for one in after.sheets if state_of(one, today()) is SheetState.REVOKED]
    if args.json:
        print_json({"revoked": gone, "left": [one.number for one in after.current()]})
        return 0
    print(f"revoked: {', '.join(map(str, gone))}")
    talk(
        "The words on a revoked sheet stay valid. If another person may have seen or taken it, "
        "make new words: holdfast paper replace"
    )
    if not after.current():
        talk("No sheet is left: print one now. Without one, losing the keys means losing the agent.")
    return 0


def run_card(args: argparse.Namespace) -> int:
    from holdfast.identity.acts.paper_sheets import make_card, today
    from holdfast.identity.paper.pages import card_pdf, card_text

    session = _session(args)
    card = make_card(session, date=today(), backups=_places(session), contact=args.contact)
    if args.text:
        print(card_text(card), end="")
        return 0
    if sys.stdout.isatty():
        raise BadInput("cannot show a PDF on a terminal", hint="pipe the PDF to a file or printer, or give --text")
    sys.stdout.flush()
    sys.stdout.buffer.write(card_pdf(card))
    return 0


def _places(session: PaperSession) -> list[str]:
    """Each place, with the address that a person types into `holdfast recover`."""
    from holdfast.backup.places.places import read_places

    return [f"{one.name} ({one.address})" for one in read_places(session.home.places_file)]


def _session(args: argparse.Namespace) -> PaperSession:
    from holdfast.identity.acts.paper_sheets import open_paper
    from holdfast.layout.agent_home import home_folder

    return open_paper(home_folder(args.home))


def _put(sheets: list[Sheet], args: argparse.Namespace) -> None:
    from holdfast.cli.screen.output_paper import put_secret
    from holdfast.identity.paper.pages import sheet_pdf, sheet_text

    if args.text:
        put_secret("\f".join(map(sheet_text, sheets)).encode(), args.out)
    else:
        put_secret(sheet_pdf(*sheets), args.out)


def _copied(session: PaperSession, sheets: list[Sheet]) -> None:
    from holdfast.cli.screen.output_words import copy_by_hand
    from holdfast.identity.acts.paper_sheets import today
    from holdfast.identity.paper.pages import facts
    from holdfast.identity.paper.phrase import english
    from holdfast.identity.paper.shares import slip39_words

    for sheet in sheets:
        copy_by_hand(facts(sheet), sheet.words, english() if sheet.share is None else slip39_words())
        _note_read(session, [sheet.number], today())
        print(f"sheet {sheet.number}: copied and checked; write this number on the sheet")


def _note_read(session: PaperSession, numbers: list[int], date: str) -> bool:
    """Note that sheets were read back, signed by the agent; whether it could be signed. The words were right either
    way, so a vault that does not open now stops nothing."""
    from holdfast.core.clock import SystemClock
    from holdfast.errors import HoldfastError
    from holdfast.identity.acts.paper_sheets import mark_verified
    from holdfast.identity.speaker.open_speaker import open_speaker

    try:
        mark_verified(session, numbers, date=date, speaker=open_speaker(session.home, SystemClock()))
    except HoldfastError as error:
        mark_verified(session, numbers, date=date)
        talk(f"noted, but not signed by the agent, so it proves no level: {error.message}")
        talk("run `holdfast paper verify` again where the agent's keys can be opened")
        return False
    return True


def _report_corrected(change: str) -> None:
    if change:
        talk(f"corrected: {change}; correct the sheet too")


def _parts(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    found = _PARTS.fullmatch(text)
    if found is None:
        raise BadInput(f"--shares: {text!r} does not have the form MofN, such as 2of3")
    return int(found[1]), int(found[2])


def _number(word: str) -> int:
    if not word.isascii() or not word.isdigit():
        raise BadInput(f"{word!r} is not a sheet number")
    return int(word[:9])
