"""Everything a command prints: tables for people, JSON for programs, one line for a mistake."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from io import BytesIO, TextIOWrapper
from shutil import get_terminal_size
from textwrap import wrap
from typing import TextIO, TypeVar, cast

import click

Item = TypeVar("Item")

WIDTH = 100  # a table is never wider, unless the terminal is
LONGEST_ID = 48  # longer ones fold; what is cut in two can still be read

# A stranger's text may hold terminal commands; a newline and a tab are harmless.
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


class Refused(click.ClickException):
    """Bad input: the message names the thing and the cure; exit code 2."""

    exit_code = 2

    def format_message(self) -> str:
        """The message, harmless to a terminal."""
        return harmless(self.message)


class Failed(Refused):
    """The work was right and did not succeed; exit code 1."""

    exit_code = 1


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table; a flexible one wraps, the others keep the width of what they hold."""

    name: str
    is_flexible: bool = False
    is_number: bool = False


def say(text: str, *, is_error: bool = False) -> None:
    """One line for people; a character that the terminal lacks is written as its code."""
    _write(harmless(text) + "\n", sys.stderr if is_error else sys.stdout)


def say_json(value: object) -> None:
    """The value as JSON, whatever the terminal can show."""
    text = json.dumps(value, indent=2, ensure_ascii=False, default=_plain)
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        text = json.dumps(value, indent=2, ensure_ascii=True, default=_plain)
    click.echo(text)


def _plain(value: object) -> object:
    """What JSON has for it: times in UTC as ISO 8601, decimals as text."""
    match value:
        case datetime():
            return value.astimezone(UTC).isoformat()
        case Decimal():
            return f"{value:f}"
        case Mapping():
            return dict(cast("Mapping[object, object]", value))
        case _:
            return str(value)


def say_table(columns: Sequence[Column], rows: Sequence[Sequence[object]]) -> None:
    """The rows under their headings, in at most `WIDTH` columns when piped; nothing is cut off."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    cells = [[cell(value) for value in row] for row in rows]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    for position, column in enumerate(columns):
        table.add_column(
            column.name,
            width=None if column.is_flexible else _width(column.name, cells, position),
            min_width=12 if column.is_flexible else None,
            overflow="fold",
            justify="right" if column.is_number else "left",
        )
    for row in cells:
        table.add_row(*(Text(text) for text in row))
    _print(table)


def say_facts(facts: Mapping[str, object]) -> None:
    """Names and values, one pair a line; a long value goes on under itself, words stay whole."""
    indent = max(map(len, facts), default=0) + 2
    for name, value in facts.items():
        lines = wrap(cell(value), WIDTH - indent, break_long_words=False, break_on_hyphens=False)
        say(name.ljust(indent) + ("\n" + " " * indent).join(lines))


def cell(value: object) -> str:
    """A value for people: `-` for nothing, JSON for data, UTC for times."""
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
    """How far away a moment is: `12m ago`, `in 3h`; `-` for none."""
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
    """`1 page`, `2 pages`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def harmless(text: str) -> str:
    """The text without anything a terminal would obey."""
    return _CONTROLS.sub("\N{REPLACEMENT CHARACTER}", text)


def shortened(text: str, length: int) -> str:
    """The text on one line, cut to a length with an ellipsis."""
    line = " ".join(text.split())
    return line if len(line) <= length else line[: length - 1].rstrip() + "…"


def counting(items: Iterable[Item], *, total: int, noun: str) -> Iterator[Item]:
    """The items as they come; on a terminal a bar grows meanwhile, in a pipe nothing is shown."""
    if not sys.stderr.isatty():
        yield from items
        return
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    yield from track(items, total=total, description=f"{noun}s", console=console, transient=True)


def _width(name: str, cells: Sequence[Sequence[str]], position: int) -> int:
    from rich.cells import cell_len

    widths = [cell_len(line) for row in cells for line in row[position].splitlines()]
    return min(max([len(name), *widths]), LONGEST_ID)


def _print(renderable: object) -> None:
    from rich.console import Console

    is_terminal = sys.stdout.isatty()
    encoding = sys.stdout.encoding or "utf-8"  # a rule is drawn with what this has
    page = TextIOWrapper(BytesIO(), encoding=encoding, errors="backslashreplace", newline="\n")
    console = Console(
        file=page,
        force_terminal=is_terminal,
        width=max(get_terminal_size().columns, WIDTH) if is_terminal else WIDTH,
        highlight=False,
    )
    console.print(renderable)
    page.seek(0)
    _write("\n".join(line.rstrip() for line in page.read().split("\n")), sys.stdout)


def _write(text: str, stream: TextIO) -> None:
    encoding = stream.encoding or "utf-8"
    click.echo(text.encode(encoding, "backslashreplace").decode(encoding), file=stream, nl=False)
