"""The pages of the recovery document: its sentences, as plain text and as PDF with its QR codes.

A page is A4, black on white, in fonts that every reader has. It is made in memory and given back as bytes; nothing
is written to a disk here. Fonts of the PDF standard know Latin-1: other letters of a name are printed as `?`, in the
words and codes there are none.
"""

from __future__ import annotations

import datetime as dt
import textwrap

from holdfast.errors import BadSheet
from holdfast.identity.paper.paper import CODE_CHARS_MAX, Card, Sheet, grouped

POWER = (
    "Anyone who holds this sheet can lock out every running copy of the agent, take it over and "
    "open its backups. You do not need it in daily work. It signs nothing else."
)
SHARE_POWER = (
    "Any {needed} of these {total} shares together can lock out every running copy of the agent, take "
    "it over and open its backups. One share alone reveals nothing. Never keep two in one place."
)
STEPS = (
    "Install Holdfast (pipx install holdfast, or its wheel) and Borg 1.4. Without Holdfast: Python and age, see the "
    "public card.",
    "Run: holdfast recover --place ADDRESS (see: Backups)",
    "Scan the code, or type the words. The first four letters of each are enough.",
    "Check that name and id on the screen match this sheet.",
    "Follow the instructions on the screen.",
)
WARNING = (
    "Never type these words into a website or a chat. If anyone else has seen this sheet, run: holdfast paper replace"
)
DERIVATION = (
    "Words: BIP-39, English list. Shares: SLIP-39; combined they give the 32 bytes of the words.",
    "Seed: BIP-39, PBKDF2-HMAC-SHA-512, 2048 rounds, salt 'mnemonic' + passphrase (NFKD).",
    "Keys: SLIP-0010, hardened steps only:",
    "  ed25519     m/7233'/0'/g'  recovery key of generation g: evicts, retires",
    "  ed25519     m/7233'/1'/g'  next key: takes over after recovery g",
    "  curve25519  m/7233'/2'/0'  escrow key: an age identity",
    "Escrow key as text: Bech32, prefix AGE-SECRET-KEY-, capitals.",
    "Open the keys without Holdfast: age -d -i KEYFILE escrow.age (next to every backup).",
    "Backups: Borg 1.4. In a folder, the repository is ADDRESS/NAME/repository.",
    "Log: JSON lines; records signed with Ed25519 over 'holdfast/1/kel', NUL, RFC 8785 JSON.",
    "A code: HF1C: (of several: HF2C:2/5:TAG:), then base32 of the zlib-compressed log lines.",
)


def heading(sheet: Sheet) -> str:
    return f"Recovery sheet for agent {sheet.name}"


def facts(sheet: Sheet) -> str:
    parts = [f"sheet {sheet.number}", sheet.date, f"for recovery {sheet.generation}", sheet.part]
    if sheet.share is not None:
        parts.append(f"document {sheet.share.document}")
    if sheet.holder:
        parts.append(f"for {sheet.holder}")
    return " - ".join(parts)


def power(sheet: Sheet) -> str:
    if sheet.share is None:
        return POWER
    return SHARE_POWER.format(needed=sheet.share.needed, total=sheet.total)


def checks(sheet: Sheet) -> list[str]:
    kept = "yes, kept at ______________" if sheet.has_passphrase else "none"
    return [
        f"Check: {grouped(sheet.check)}",
        f"Id: {sheet.agent_id[:6]} ... {sheet.agent_id[-6:]}",
        f"Passphrase: {kept}",
    ]


TEXT_COLUMNS = 80
BACKUPS_MAX = 3  # on a sheet; the card has all of them
ADDRESS_CHARS_MAX = 120  # of one line on a sheet


def backups(sheet: Sheet) -> list[str]:
    """Where the backups are, as far as there is room for it."""
    short = [one for one in sheet.backups if len(one) <= ADDRESS_CHARS_MAX][:BACKUPS_MAX]
    left = len(sheet.backups) - len(short)
    more = [f"and {left} more, see the public card"] if left and short else []
    if not short:
        more = ["see the public card" if sheet.backups else "none when this sheet was printed; ______________________"]
    return ["Backups: " + "; ".join([*short, *more])]


def rows(words: tuple[str, ...], columns: int = 3) -> list[list[tuple[int, str]]]:
    """Numbered words, in columns that are read downwards."""
    height = -(-len(words) // columns)
    return [[(at + 1, words[at]) for at in range(row, len(words), height)] for row in range(height)]


def sheet_text(sheet: Sheet) -> str:
    """The same as the printed page, for a machine without PDF."""
    lines = [f"SECRET - {heading(sheet)}", facts(sheet), "", *_folded(power(sheet)), ""]
    for row in rows(sheet.words):
        lines.append("".join(f"{number:2}. {word:<14}" for number, word in row).rstrip())
    lines += ["", *checks(sheet), *backups(sheet), "", sheet.code, ""]  # a code is read as one line
    lines += [line for number, step in enumerate(STEPS, 1) for line in _folded(f"{number}. {step}", "   ")]
    lines += ["", *_folded(WARNING), "", "Tested:  date        who             how (scan, typed)   result"]
    lines += ["         __________  ______________  __________________  __________"] * 4
    return "\n".join(lines) + "\n"


def _folded(text: str, indent: str = "") -> list[str]:
    return textwrap.wrap(text, TEXT_COLUMNS, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def listed(card: Card) -> list[tuple[str, str]]:
    return [
        ("Handles", ", ".join(card.handles) or "none"),
        ("Relays", ", ".join(card.relays) or "none"),
        ("Backups", ", ".join(card.backups) or "none listed: ask the owner of this agent"),
        ("Contact", card.contact or "none"),
    ]


def card_text(card: Card) -> str:
    lines = [f"PUBLIC CARD of agent {card.name}", card_facts(card), "", "Id:", grouped(card.agent_id)]
    lines += ["", *(f"{name}: {value}" for name, value in listed(card)), "", *card.codes, ""]
    lines += ["Without Holdfast:", *DERIVATION]
    return "\n".join(lines) + "\n"


def card_facts(card: Card) -> str:
    return f"{card.date}, for recovery {card.generation}. Print a new card after each recovery."


WIDTH, LEFT, RIGHT = 210.0, 15.0, 195.0  # millimetres
WORDS_PT = 13
SHEET_CODE_MM, SHARE_CODE_MM, CARD_CODE_MM = 80.0, 86.0, 136.0
QUIET_MODULES = 4
LOG_ROWS = 4


def sheet_pdf(*sheets: Sheet) -> bytes:
    """Secret pages, one for each sheet."""
    page = PdfPage(heading(sheets[0]))
    for number, sheet in enumerate(sheets):
        if number:
            page.turn()
        _sheet(page, sheet)
    return page.done()


def _sheet(page: PdfPage, sheet: Sheet) -> None:
    page.title("SECRET", heading(sheet))
    page.text(facts(sheet), 11)
    page.gap(1.4)
    page.text(power(sheet), 11)
    page.gap(4)
    _words(page, sheet)
    page.gap(4)
    _code_and_checks(page, sheet)
    for line in backups(sheet):
        page.text(line, 10, bold=True)
    page.gap(2)
    _log(page)


def card_pdf(card: Card) -> bytes:
    """The public page."""
    page = PdfPage(f"Public card of agent {card.name}")
    page.title("PUBLIC", f"Card of agent {card.name}")
    page.line(card_facts(card), 11)
    page.gap(2)
    page.line("Id", 11, bold=True)
    page.text(grouped(card.agent_id), 13, font="Courier")
    page.gap(2)
    for name, value in listed(card):
        page.text(f"{name}: {value}", 11)
    page.gap(3)
    first, *more = card.codes
    _card_code(page, first)
    several = f"This is code 1 of {1 + len(more)}: the other pages have the others, and all of them are needed. "
    page.text(
        (several if more else "") + "The code holds the signed records that begin this identity. With the recovery "
        "sheet they restore the identity even if every relay and every backup is lost.",
        10,
    )
    page.gap(3)
    page.line("Without Holdfast", 11, bold=True)
    for line in DERIVATION:
        page.line(line, 8.5, font="Courier")
    for number, code in enumerate(more, 2):
        page.turn()
        page.title("PUBLIC", f"Card of agent {card.name}")
        page.line(f"{card.date}, code {number} of {1 + len(more)}. Keep all pages together.", 11)
        page.gap(3)
        _card_code(page, code)
    return page.done()


def _card_code(page: PdfPage, code: str) -> None:
    top = page.y
    size = page.code(code, x=(WIDTH - CARD_CODE_MM) / 2, y=top, size=CARD_CODE_MM, level="q")
    page.y = top + size + 3


def _words(page: PdfPage, sheet: Sheet) -> None:
    """Numbered, the first four letters bold: they are enough to name a word."""
    for row in rows(sheet.words):
        for column, (number, word) in enumerate(row):
            page.word(LEFT + column * 60, number, word)
        page.y += 7


def _code_and_checks(page: PdfPage, sheet: Sheet) -> None:
    top = page.y
    size = SHEET_CODE_MM if sheet.share is None else SHARE_CODE_MM
    page.code(sheet.code, x=RIGHT - size, y=top, size=size, level="q")
    page.right = RIGHT - size - 4
    for line in checks(sheet):
        page.text(line, 11, bold=True)
    page.gap(2)
    for number, step in enumerate(STEPS, 1):
        page.text(f"{number}. {step}", 10)
    page.gap(1)
    page.text(WARNING, 10, bold=True)
    page.right = RIGHT
    page.y = max(page.y, top + size) + 4


def _log(page: PdfPage) -> None:
    page.line("Tests: read this sheet back with `holdfast paper verify`, now and every 90 days", 10)
    page.table(("date", "who", "how (scan, typed)", "result"), rows=LOG_ROWS)


class PdfPage:
    """A page that is written from top to bottom."""

    def __init__(self, subject: str) -> None:
        from fpdf import FPDF  # slow to load, and plain text needs none of it

        pdf = FPDF(format="A4", unit="mm")
        pdf.set_creation_date(dt.datetime(2000, 1, 1, tzinfo=dt.UTC))  # the date is printed
        pdf.set_producer("holdfast")
        pdf.set_title(_latin(subject))
        pdf.set_auto_page_break(auto=False)
        pdf.set_margins(LEFT, 12, WIDTH - RIGHT)
        pdf.add_page()
        self._pdf = pdf
        self.right = RIGHT
        self.y = 14.0

    def turn(self) -> None:
        """Begin another page."""
        self._check_fits()
        self._pdf.add_page()
        self.y = 14.0

    def title(self, mark: str, text: str) -> None:
        self._pdf.set_line_width(0.6)
        self._font(12, bold=True)
        self._pdf.set_xy(LEFT, self.y)
        self._pdf.cell(26, 9, mark, border=1, align="C")
        size = next((pt for pt in (18, 15, 12, 10) if self._wide(text, pt) <= 150), 8)
        self._font(size, bold=True)
        self._pdf.set_xy(LEFT + 30, self.y)
        self._pdf.cell(150, 9, _latin(text))
        self._pdf.set_line_width(0.2)
        self.y += 12

    def line(self, text: str, size: float, *, bold: bool = False, font: str = "Helvetica") -> None:
        self._font(size, bold=bold, font=font)
        self._pdf.set_xy(LEFT, self.y)
        self._pdf.cell(self.right - LEFT, size * 0.45, _latin(text))
        self.y += size * 0.45

    def text(self, text: str, size: float, *, bold: bool = False, font: str = "Helvetica") -> None:
        self._font(size, bold=bold, font=font)
        self._pdf.set_xy(LEFT, self.y)
        self._pdf.multi_cell(self.right - LEFT, size * 0.45, _latin(text), align="L")
        self.y = self._pdf.get_y() + 0.6

    def word(self, x: float, number: int, word: str) -> None:
        self._font(9)
        self._pdf.set_xy(x, self.y)
        self._pdf.cell(9, 6, f"{number}.", align="R")
        for part, bold in ((word[:4], True), (word[4:], False)):
            self._font(WORDS_PT, bold=bold, font="Courier")
            self._pdf.cell(self._pdf.get_string_width(part), 6, part)
            self._pdf.set_x(self._pdf.get_x())

    def code(self, text: str, *, x: float, y: float, size: float, level: str) -> float:
        """A QR code with its margin; its size."""
        import segno

        if len(text) > CODE_CHARS_MAX:
            raise BadSheet("the text is too long for a QR code")
        try:
            made = segno.make(text, error=level, micro=False, boost_error=False)
        except segno.DataOverflowError:
            raise BadSheet("the text is too long for a QR code") from None
        matrix = [list(row) for row in made.matrix]
        module = size / (len(matrix) + 2 * QUIET_MODULES)
        self._pdf.set_fill_color(0)
        for down, row in enumerate(matrix):
            for start, length in _runs(row):
                self._pdf.rect(
                    x + (start + QUIET_MODULES) * module,
                    y + (down + QUIET_MODULES) * module,
                    length * module,
                    module,
                    style="F",
                )
        return size

    def table(self, names: tuple[str, ...], *, rows: int) -> None:
        width = (RIGHT - LEFT) / len(names)
        self._font(9, bold=True)
        for row in range(rows + 1):
            for column, name in enumerate(names):
                self._pdf.set_xy(LEFT + column * width, self.y)
                self._pdf.cell(width, 7, name if row == 0 else "", border=1)
            self.y += 7

    def gap(self, millimetres: float) -> None:
        self.y += millimetres

    def done(self) -> bytes:
        """Raises BadSheet where something would lie beyond the page."""
        self._check_fits()
        return bytes(self._pdf.output())

    def _check_fits(self) -> None:
        if self.y > 290:
            raise BadSheet("the text is too long for one page")

    def _font(self, size: float, *, bold: bool = False, font: str = "Helvetica") -> None:
        self._pdf.set_font(font, "B" if bold else "", size)

    def _wide(self, text: str, size: float) -> float:
        self._font(size, bold=True)
        return self._pdf.get_string_width(_latin(text))


def _runs(row: list[int]) -> list[tuple[int, int]]:
    """Where dark modules begin, and how many follow."""
    found: list[tuple[int, int]] = []
    for at, dark in enumerate(row):
        if not dark:
            continue
        if found and sum(found[-1]) == at:
            found[-1] = (found[-1][0], found[-1][1] + 1)
        else:
            found.append((at, 1))
    return found


def _latin(text: str) -> str:
    return text.encode("latin-1", "replace").decode("latin-1")
