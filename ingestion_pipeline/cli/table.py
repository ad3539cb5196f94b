"""A table of text: columns as wide as what they hold, the flexible ones as narrow as they must be.

Made by hand, since the library that draws tables took a quarter of the time of `ingest status`.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

GAP = "  "
INDENT = "    "
LONGEST_ID = 48  # longer ones fold; what is cut in two can still be read
USUAL = 12  # a flexible column is no narrower, unless the others leave it no room

_WORD = re.compile(r"\S+\s*|\s+")


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table; a flexible one wraps, the others keep the width of what they hold."""

    name: str
    is_flexible: bool = False
    is_number: bool = False


def table_lines(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], *, width: int, rule: str = "─"
) -> list[str]:
    """The heading, a rule, the rows; at most `width` columns of a terminal wide, nothing cut.

    Where the others leave a flexible column no room, what it holds stands beneath its row.
    """
    natural = [_natural(*one) for one in _by_column(columns, rows)]
    widths = _fitted(columns, natural, width)
    beneath = [
        place
        for place, column in enumerate(columns)
        if column.is_flexible and widths[place] < min(USUAL, natural[place])
    ]
    if not beneath:
        return _grid(columns, rows, widths, rule)
    return _stacked(columns, rows, beneath, width=width, rule=rule)


def _grid(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], widths: Sequence[int], rule: str
) -> list[str]:
    heading = _row([column.name for column in columns], columns, widths)
    body = [line for row in rows for line in _row(row, columns, widths)]
    return [*heading, rule * (sum(widths) + len(GAP) * (len(widths) - 1)), *body]


def _stacked(
    columns: Sequence[Column],
    rows: Sequence[Sequence[str]],
    beneath: Sequence[int],
    *,
    width: int,
    rule: str,
) -> list[str]:
    """The table without these columns; under each row what they hold, by name."""
    kept = [place for place in range(len(columns)) if place not in beneath]
    shown = [columns[place] for place in kept]
    cells = [[row[place] for place in kept] for row in rows]
    widths = _fitted(shown, [_natural(*one) for one in _by_column(shown, cells)], width)
    lines = _grid(shown, (), widths, rule)
    for row, held in zip(rows, cells, strict=True):
        lines += _row(held, shown, widths)
        for place in beneath:
            text = f"{columns[place].name}: {row[place]}"
            lines += [INDENT + line for line in folded(text, width - len(INDENT))]
    return lines


def _by_column(
    columns: Sequence[Column], rows: Sequence[Sequence[str]]
) -> Iterator[tuple[Column, list[str]]]:
    for place, column in enumerate(columns):
        yield column, [row[place] for row in rows]


def _natural(column: Column, texts: Sequence[str]) -> int:
    """The width that its longest line asks for."""
    needed = max([len(column.name), *(_widest_line(text) for text in texts)])
    return max(needed, USUAL) if column.is_flexible else min(needed, LONGEST_ID)


def _fitted(columns: Sequence[Column], natural: Sequence[int], width: int) -> list[int]:
    """The widths that fit: what is too much is taken from the widest of the flexible columns.

    Only where nothing is left of these it is taken from the widest of all: an id stays whole.
    """
    room = max(width - len(GAP) * (len(columns) - 1), len(columns))
    widths = [min(one, room) for one in natural]
    flexible = [place for place, column in enumerate(columns) if column.is_flexible]
    while sum(widths) > room:
        wide = [place for place in flexible if widths[place] > 1] or range(len(widths))
        widths[max(wide, key=widths.__getitem__)] -= 1
    return widths


def _row(texts: Sequence[str], columns: Sequence[Column], widths: Sequence[int]) -> list[str]:
    """Its lines: as many as the cell that needs most."""
    cells = [folded(text, width) for text, width in zip(texts, widths, strict=True)]
    lines: list[str] = []
    for nth in range(max(map(len, cells))):
        parts = (
            _padded(cell[nth] if nth < len(cell) else "", width, is_number=column.is_number)
            for cell, width, column in zip(cells, widths, columns, strict=True)
        )
        lines.append(GAP.join(parts).rstrip())
    return lines


def _padded(text: str, width: int, *, is_number: bool) -> str:
    space = " " * (width - cell_width(text))
    return space + text if is_number else text + space


def folded(text: str, width: int) -> list[str]:
    """The text in lines of at most that width: between words, inside one only if it is longer."""
    if len(text) <= width and text.isascii() and text.isprintable():
        return [text]
    return [part for line in text.expandtabs().split("\n") for part in _folded_line(line, width)]


def _folded_line(line: str, width: int) -> Iterator[str]:
    held, used = "", 0
    for word in _WORD.findall(line):
        size = cell_width(word.rstrip())
        if held and used + size > width:
            yield held.rstrip()
            held, used = "", 0
        rest = word
        while cell_width(rest.rstrip()) > width:
            head = _head(rest, width)
            yield head
            rest = rest[len(head) :]
        held += rest
        used += cell_width(rest)
    yield held.rstrip()


def _head(word: str, width: int) -> str:
    """As much of the word as fits; a character that is too wide by itself stands alone."""
    used = 0
    for place, character in enumerate(word):
        used += cell_width(character)
        if used > width:
            return word[: max(place, 1)]
    return word


def _widest_line(text: str) -> int:
    return max(map(cell_width, text.expandtabs().split("\n")))


def cell_width(text: str) -> int:
    """How many columns of a terminal it takes: two for wide characters, none for marks on them."""
    if text.isascii():
        return len(text)
    return sum(map(_character_width, text))


def _character_width(character: str) -> int:
    if unicodedata.category(character) in {"Mn", "Me", "Cf"}:
        return 0
    return 2 if unicodedata.east_asian_width(character) in {"W", "F"} else 1
