"""Output of commands: tables and facts for people, JSON for programs, errors as messages."""

import json
import os
import re
import sys
import unicodedata
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, is_dataclass
from datetime import UTC, datetime
from decimal import Decimal
from shutil import get_terminal_size
from textwrap import wrap
from typing import IO, Any, TextIO, TypeVar, cast

import click

from ingestion_pipeline.terminal import harmless, harmless_json

GAP = "  "
INDENT = "    "
LONGEST_ID = 48  # longer values wrap
USUAL = 12  # minimum width of a flexible column, if there is room

_WORD = re.compile(r"\S+\s*|\s+")


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table; a flexible one wraps, the others keep the width of what they hold."""

    name: str
    is_flexible: bool = False
    is_number: bool = False


def table_lines(columns: Sequence[Column], rows: Sequence[Sequence[str]], *, width: int, rule: str = "─") -> list[str]:
    """Return heading, rule and rows within `width`, nothing cut; a flexible column without room goes beneath."""
    natural = [_natural(*column_cells) for column_cells in _by_column(columns, rows)]
    widths = _fitted(columns, natural, width)
    beneath = [
        place
        for place, column in enumerate(columns)
        if column.is_flexible and widths[place] < min(USUAL, natural[place])
    ]
    if not beneath:
        return _grid(columns, rows, widths, rule)
    return _stacked(columns, rows, beneath, width=width, rule=rule)


def _grid(columns: Sequence[Column], rows: Sequence[Sequence[str]], widths: Sequence[int], rule: str) -> list[str]:
    heading = _row([column.name for column in columns], columns, widths)
    body = [line for row in rows for line in _row(row, columns, widths)]
    return [*heading, rule * (sum(widths) + len(GAP) * (len(widths) - 1)), *body]


def _stacked(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], beneath: Sequence[int], *, width: int, rule: str
) -> list[str]:
    """Return the table without the columns `beneath`, whose cells follow under each row by name."""
    inline = [place for place in range(len(columns)) if place not in beneath]
    shown_columns = [columns[place] for place in inline]
    cells = [[row[place] for place in inline] for row in rows]
    widths = _fitted(
        shown_columns, [_natural(*column_cells) for column_cells in _by_column(shown_columns, cells)], width
    )
    lines = _grid(shown_columns, (), widths, rule)
    for row, held in zip(rows, cells, strict=True):
        lines += _row(held, shown_columns, widths)
        for place in beneath:
            text = f"{columns[place].name}: {row[place]}"
            lines += [INDENT + line for line in folded(text, width - len(INDENT))]
    return lines


def _by_column(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> Iterator[tuple[Column, list[str]]]:
    for place, column in enumerate(columns):
        yield column, [row[place] for row in rows]


def _natural(column: Column, texts: Sequence[str]) -> int:
    """Return the width that the longest line of the column needs."""
    needed = max([len(column.name), *(_widest_line(text) for text in texts)])
    return max(needed, USUAL) if column.is_flexible else min(needed, LONGEST_ID)


def _fitted(columns: Sequence[Column], natural: Sequence[int], width: int) -> list[int]:
    """Return widths that fit: the widest flexible columns shrink first, so that ids stay whole."""
    room = max(width - len(GAP) * (len(columns) - 1), len(columns))
    widths = [min(wanted_width, room) for wanted_width in natural]
    flexible = [place for place, column in enumerate(columns) if column.is_flexible]
    while sum(widths) > room:
        wide = [place for place in flexible if widths[place] > 1] or range(len(widths))
        widths[max(wide, key=widths.__getitem__)] -= 1
    return widths


def _row(texts: Sequence[str], columns: Sequence[Column], widths: Sequence[int]) -> list[str]:
    """Return the lines of a row: as many as its tallest cell."""
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
    """Return the text in lines of at most that width, broken inside a word only if it is longer."""
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
    """Return as much of the word as fits, at least one character."""
    used = 0
    for place, character in enumerate(word):
        used += cell_width(character)
        if used > width:
            return word[: max(place, 1)]
    return word


def _widest_line(text: str) -> int:
    return max(map(cell_width, text.expandtabs().split("\n")))


def cell_width(text: str) -> int:
    """Return the terminal columns of the text: two for wide characters, none for marks."""
    if text.isascii():
        return len(text)
    return sum(map(_character_width, text))


def _character_width(character: str) -> int:
    if unicodedata.category(character) in {"Mn", "Me", "Cf"}:
        return 0
    return 2 if unicodedata.east_asian_width(character) in {"W", "F"} else 1


Item = TypeVar("Item")

WIDTH = 100  # a table is never wider, unless the terminal is


class CommandRefused(click.ClickException):
    """Bad input: the message names the thing and the cure; exit code 2."""

    exit_code = 2

    def format_message(self) -> str:
        """Return the message without terminal control sequences."""
        return harmless(self.message)


class CommandFailed(CommandRefused):
    """Valid work that did not succeed; exit code 1."""

    exit_code = 1


class Interrupted(CommandFailed):
    """An interruption by Ctrl-C; exit code 130, as shells have it."""

    exit_code = 130

    def __init__(self) -> None:
        super().__init__("stopped by Ctrl-C: no partial result was written; run the command again to continue")

    def show(self, file: IO[Any] | None = None) -> None:
        """Print the message on its own line, beneath the terminal's `^C`."""
        click.echo(f"\n{self.format_message()}", file=file or sys.stderr)


def echo(text: str, *, is_error: bool = False) -> None:
    """Print one line; characters that the terminal lacks are escaped."""
    _write(harmless(text) + "\n", sys.stderr if is_error else sys.stdout)


def print_json(value: object) -> None:
    """Print the value as JSON, escaped if the terminal cannot show it."""
    text = harmless_json(_json(value))
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        text = json.dumps(value, indent=2, ensure_ascii=True, default=_plain)
    click.echo(text)


def _json(value: object) -> str:
    """Encode with orjson; what it refuses (lone surrogates, huge numbers) with the standard library."""
    import orjson

    option = orjson.OPT_INDENT_2 | orjson.OPT_NON_STR_KEYS | orjson.OPT_PASSTHROUGH_DATETIME
    try:
        return orjson.dumps(value, default=_plain, option=option).decode()
    except (orjson.JSONEncodeError, UnicodeEncodeError):
        return json.dumps(value, indent=2, ensure_ascii=False, default=_plain)


def _plain(value: object) -> object:
    """Return what JSON has for the value: times in UTC as ISO 8601, decimals as text."""
    match value:
        case datetime():
            return value.astimezone(UTC).isoformat()
        case Decimal():
            return f"{value:f}"
        case Mapping():
            return dict(cast("Mapping[object, object]", value))
        case _ if is_dataclass(value) and not isinstance(value, type):
            return asdict(value)
        case _:
            return str(value)


def print_listing(
    rows: Sequence[Item],
    record: Callable[[Item], Mapping[str, object]],
    *,
    as_json: bool,
    empty: str,
    numbers: Collection[str] = (),
    flexible: Collection[str] = (),
) -> None:
    """Print the rows as JSON, or as a table of their records; `empty` if there is none."""
    if as_json:
        print_json(rows)
    elif rows:
        print_records(map(record, rows), numbers=numbers, flexible=flexible)
    else:
        echo(empty)


def print_records(
    records: Iterable[Mapping[str, object]], *, numbers: Collection[str] = (), flexible: Collection[str] = ()
) -> None:
    """Print at least one record of the same keys as a table, whose headings are the keys."""
    listed = list(records)
    print_table([*listed[0]], [[*each.values()] for each in listed], numbers=numbers, flexible=flexible)


def print_table(
    headings: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    numbers: Collection[str] = (),
    flexible: Collection[str] = (),
) -> None:
    """Print the rows under their headings, in at most `WIDTH` columns when piped."""
    columns = [Column(name, is_flexible=name in flexible, is_number=name in numbers) for name in headings]
    is_terminal = sys.stdout.isatty()
    width = max(get_terminal_size().columns, WIDTH) if is_terminal else WIDTH
    cells = [[cell(value) for value in row] for row in rows]
    first, *rest = table_lines(columns, cells, width=width, rule=_rule())
    heading = f"\x1b[1m{first}\x1b[0m" if is_terminal and _has_styles() else first
    _write("\n".join([heading, *rest, ""]), sys.stdout)


def _rule() -> str:
    """Return the character for horizontal rules that the terminal has."""
    try:
        "─".encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        return "-"
    return "─"


def _has_styles() -> bool:
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"  # noqa: TID251


def print_facts(facts: Mapping[str, object]) -> None:
    """Print names and values, one pair a line; long values wrap at words."""
    indent = max(map(len, facts), default=0) + 2
    for name, value in facts.items():
        lines = wrap(cell(value), WIDTH - indent, break_long_words=False, break_on_hyphens=False)
        echo(name.ljust(indent) + ("\n" + " " * indent).join(lines))


def cell(value: object) -> str:
    """Format a value for people: `-` for nothing, JSON for data, UTC for times."""
    if type(value) is str:  # fast path: most cells are text
        return harmless(value) or "-"
    match value:
        case None | "":
            return "-"
        case bool():
            return "yes" if value else "no"
        case datetime():
            return f"{value.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
        case dict() | list():
            return harmless(json.dumps(value, ensure_ascii=False, default=_plain))
        case _:
            return harmless(str(value))


def distance(moment: datetime | None, now: datetime) -> str:
    """Format how far away a moment is: `12m ago`, `in 3h`; `-` for none."""
    if moment is None:
        return "-"
    seconds = (moment - now).total_seconds()
    return f"in {_span(seconds)}" if seconds > 0 else f"{_span(abs(seconds))} ago"


def _span(seconds: float) -> str:
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= 2 * size or (unit == "m" and seconds >= size):
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:.0f}s"


def counted(count: int, noun: str) -> str:
    """Format a count with its noun: `1 page`, `2 pages`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def shortened(text: str, length: int) -> str:
    """Return the text on one line, cut to a length with an ellipsis."""
    line = " ".join(text.split())
    return line if len(line) <= length else line[: length - 1].rstrip() + "…"


def counting(items: Iterable[Item], *, total: int, noun: str) -> Iterator[Item]:
    """Yield the items with a progress bar on a terminal; nothing is shown in a pipe."""
    if not sys.stderr.isatty():
        yield from items
        return
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    yield from track(items, total=total, description=f"{noun}s", console=console, transient=True)


def _write(text: str, stream: TextIO) -> None:
    encoding = stream.encoding or "utf-8"
    click.echo(text.encode(encoding, "backslashreplace").decode(encoding), file=stream, nl=False)
