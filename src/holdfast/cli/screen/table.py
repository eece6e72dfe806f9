"""Tables at a terminal: as wide as the screen, no word and no time broken.

Each column is at least as wide as its longest word; what is left over goes to the columns that need most. If even that
does not fit, the last columns leave the table: their text follows below their row, indented, with its name where there
are several. `lay_out` decides, over lengths alone; rich draws.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.text import Text

GAP = 2
_TEXT_MIN = 28  # the last column is often a sentence: narrower than this it is no pleasure to read
_WORD_MAX = 40  # a longer word is no word of a person's language: it does not make its column wide


def lay_out(columns: Sequence[str], rows: Sequence[Sequence[str]], width: int, kept_whole: frozenset[int]) -> list[int]:
    """The width of each column that stays in the table. One that is kept whole is as wide as its longest cell."""
    cells = [[column, *(row[i] for row in rows)] for i, column in enumerate(columns)]
    wanted = [max(len(cell) for cell in one) for one in cells]
    words = [max(len(word) for cell in one for word in cell.split() or [""]) for one in cells]
    least = [wanted[i] if i in kept_whole else min(_WORD_MAX, words[i]) for i in range(len(columns))]
    least[-1] = max(least[-1], min(wanted[-1], _TEXT_MIN))
    count = len(columns)
    while count > 1 and sum(least[:count]) + GAP * (count - 1) > width:
        count -= 1
    widths = least[:count]
    free = width - sum(widths) - GAP * (count - 1)
    while free > 0 and any(widths[i] < wanted[i] for i in range(count)):
        i = max((i for i in range(count) if widths[i] < wanted[i]), key=lambda i: wanted[i] - widths[i])
        widths[i] += 1
        free -= 1
    return widths


def draw(columns: Sequence[str], rows: Sequence[Sequence[Text]], *, width: int, kept_whole: frozenset[int]) -> None:
    from rich.console import Console
    from rich.padding import Padding
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False, width=width)
    widths = lay_out(columns, [[cell.plain for cell in row] for row in rows], width, kept_whole)
    count = len(widths)

    def line(cells: Sequence[Text]) -> Table:
        grid = Table.grid(padding=(0, GAP, 0, 0), pad_edge=False)
        for number in widths:
            grid.add_column(width=number, overflow="fold")
        grid.add_row(*cells)
        return grid

    console.print(line([Text(column, style="bold") for column in columns[:count]]))
    console.print(Text("─" * min(width, sum(widths) + GAP * (count - 1)), style="dim"))
    for row in rows:
        console.print(line(row[:count]))
        for column, cell in zip(columns[count:], row[count:], strict=True):
            if cell.plain and cell.plain != "-":
                named = cell if len(columns) == count + 1 else Text(f"{column}: ").append_text(cell)
                console.print(Padding(named, (0, 0, 0, 4)))
