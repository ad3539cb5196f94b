"""Output of commands: tables and facts for people, JSON for programs, errors as messages."""

import json
import os
import re
import sys
import unicodedata
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, is_dataclass
from datetime import UTC, datetime
from decimal import Decimal
from shutil import get_terminal_size
from textwrap import wrap
from typing import IO, Any, Protocol, TextIO, TypeVar, cast

import click

from ingestion_pipeline.terminal import harmless, harmless_json

GAP = "  "
INDENT = "    "
LONGEST_ID = 48  # longer values wrap
USUAL = 12  # minimum width of a flexible column, if there is room
NARROW = 28  # a flexible column that needs more and gets less stands beneath its row

_WORD = re.compile(r"\S+\s*|\s+")


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table; a flexible one wraps, the others keep the width of what they hold."""

    name: str
    is_flexible: bool = False
    is_number: bool = False


def table_lines(columns: Sequence[Column], rows: Sequence[Sequence[str]], *, width: int, rule: str = "─") -> list[str]:
    """Return heading, rule and rows within `width`, nothing cut; a flexible column without room goes beneath."""
    natural = [_natural(column, [row[place] for row in rows]) for place, column in enumerate(columns)]
    beneath: list[int] = []
    while True:
        inline = [place for place in range(len(columns)) if place not in beneath]
        widths = _fitted([columns[place] for place in inline], [natural[place] for place in inline], width)
        room = dict(zip(inline, widths, strict=True))
        is_narrow = any(
            room[place] < (min(NARROW, natural[place]) if columns[place].is_flexible else natural[place])
            for place in inline
        )
        if not is_narrow or len(inline) == 1:
            return _stacked(columns, rows, room, beneath, width=width, rule=rule)
        beneath.append(max(inline[1:], key=lambda place: (columns[place].is_flexible, natural[place])))


def _stacked(
    columns: Sequence[Column],
    rows: Sequence[Sequence[str]],
    room: Mapping[int, int],
    beneath: Sequence[int],
    *,
    width: int,
    rule: str,
) -> list[str]:
    """Return the table of the columns with room; the cells of those `beneath` follow under each row by name."""
    with_room, widths = [columns[place] for place in room], [*room.values()]
    lines = _row([column.name for column in with_room], with_room, widths)
    lines.append(rule * (sum(widths) + len(GAP) * (len(widths) - 1)))
    for row in rows:
        lines += _row([row[place] for place in room], with_room, widths)
        for place in (place for place in sorted(beneath) if row[place] != "-"):
            text = f"{columns[place].name}: {row[place]}"
            lines += [INDENT + line for line in folded(text, width - len(INDENT))]
    return lines


def _natural(column: Column, texts: Sequence[str]) -> int:
    """Return the width that the longest line of the column needs."""
    lines = (line for text in texts for line in text.expandtabs().split("\n"))
    needed = max([len(column.name), *map(cell_width, lines)])
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
    """Return the text in lines of at most that width; a longer URL is shortened in its middle, another word broken."""
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
        rest = _middle_shortened(word, width) if "://" in word else word
        while cell_width(rest.rstrip()) > width:
            head = _head(rest, width)
            yield head
            rest = rest[len(head) :]
        held += rest
        used += cell_width(rest)
    yield held.rstrip()


def _middle_shortened(word: str, width: int) -> str:
    """Return the word, with an ellipsis for its middle if it is longer; a few characters are broken instead."""
    bare = word.rstrip()
    if len(bare) <= width or width < USUAL:
        return word
    tail = (width - 1) // 2
    return f"{bare[: width - 1 - tail]}…{bare[-tail:]}{word[len(bare) :]}"


def _head(word: str, width: int) -> str:
    """Return as much of the word as fits, at least one character."""
    used = 0
    for place, character in enumerate(word):
        used += cell_width(character)
        if used > width:
            return word[: max(place, 1)]
    return word


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

WIDTH = 80  # without a terminal


def page_width() -> int:
    """Return the width of the terminal, also where the output is piped to a pager."""
    for stream in (sys.__stdout__, sys.__stderr__, sys.__stdin__):
        with suppress(AttributeError, ValueError, OSError):
            return get_terminal_size(os.get_terminal_size(stream.fileno())).columns if stream else WIDTH
    return get_terminal_size((WIDTH, 24)).columns


class CommandRefused(click.ClickException):
    """Bad input: the message names the thing and the cure, the code is stable; exit code 2."""

    exit_code = 2

    def __init__(self, message: str, *, code: str) -> None:
        super().__init__(message)
        self.code = code

    def format_message(self) -> str:
        """Return the message without terminal control sequences."""
        return harmless(self.message)

    def show(self, file: IO[Any] | None = None) -> None:
        """Print the stable code and the message on stderr."""
        click.echo(f"error: {self.code}: {self.format_message()}", file=file or sys.stderr)


class CommandFailed(CommandRefused):
    """Valid work that did not succeed; exit code 1."""

    exit_code = 1


class Interrupted(CommandFailed):
    """An interruption by Ctrl-C; exit code 130, as shells have it."""

    exit_code = 130

    def __init__(
        self, message: str = "stopped by Ctrl-C: no partial result was written; run the command again to continue"
    ) -> None:
        super().__init__(message, code="interrupted")

    def show(self, file: IO[Any] | None = None) -> None:
        """Print the message on its own line, beneath the terminal's `^C`."""
        click.echo(file=file or sys.stderr)
        super().show(file)


def echo(text: str, *, is_error: bool = False) -> None:
    """Print one line; characters that the terminal lacks are escaped."""
    _write(harmless(text) + "\n", sys.stderr if is_error else sys.stdout)


def print_folded(text: str) -> None:
    """Print the text in lines that fit the page."""
    for line in folded(text, page_width()):
        echo(line)


AS_JSON = "ingestion_pipeline.as_json"


def _keep_as_json(context: click.Context, _option: click.Parameter, value: object) -> None:
    context.meta[AS_JSON] = value


json_option = click.option(
    "--json",
    is_flag=True,
    expose_value=False,
    callback=_keep_as_json,
    help="Print JSON: stable keys, UTC times, decimals as text.",
)


def is_json() -> bool:
    """Return whether the command was called with `--json`."""
    return click.get_current_context().meta[AS_JSON]


def print_result(facts: Mapping[str, object], message: str) -> None:
    """Print what a command with `json_option` has done: the message, or the facts as JSON."""
    if is_json():
        print_json(facts)
    else:
        echo(message)


def print_json(value: object) -> None:
    """Print the value as JSON, escaped if the terminal cannot show it."""
    text = harmless_json(_json(value))
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        text = json.dumps(value, indent=2, ensure_ascii=True, default=_plain)
    click.echo(text)


def print_json_line(value: object) -> None:
    """Print the value as one line of JSON in ASCII, for rows that are printed as they are read."""
    click.echo(json.dumps(value, ensure_ascii=True, default=_plain))


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
    empty: str,
    numbers: Collection[str] = (),
    flexible: Collection[str] = (),
) -> None:
    """Print the rows as JSON, or as a table of their records; `empty` if there is none."""
    if is_json():
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
    """Print the rows under their headings, within the page."""
    columns = [Column(name, is_flexible=name in flexible, is_number=name in numbers) for name in headings]
    is_terminal = sys.stdout.isatty()
    cells = [[cell(value) for value in row] for row in rows]
    first, *rest = table_lines(columns, cells, width=page_width(), rule=_rule())
    has_styles = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"  # noqa: TID251
    heading = f"\x1b[1m{first}\x1b[0m" if is_terminal and has_styles else first
    _write("\n".join([heading, *rest, ""]), sys.stdout)


def _rule() -> str:
    """Return the character for horizontal rules that the terminal has."""
    try:
        "─".encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        return "-"
    return "─"


def print_facts(facts: Mapping[str, object]) -> None:
    """Print names and values, one pair a line; long values wrap at words."""
    indent = max(map(len, facts), default=0) + 2
    for name, value in facts.items():
        lines = wrap(cell(value), max(page_width() - indent, USUAL), break_long_words=False, break_on_hyphens=False)
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
    return f"in {span(seconds)}" if seconds > 0 else f"{span(abs(seconds))} ago"


def span(seconds: float) -> str:
    """Format a duration: `12m`, `3h`."""
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= 2 * size or (unit == "m" and seconds >= size):
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:.0f}s"


def shortened(text: str, length: int) -> str:
    """Return the text on one line, cut to a length with an ellipsis."""
    line = " ".join(text.split())
    return line if len(line) <= length else line[: length - 1].rstrip() + "…"


def counting(items: Iterable[Item], *, total: int | None, noun: str) -> Iterator[Item]:
    """Yield the items with a progress bar on a terminal; nothing is shown in a pipe."""
    with progress(total=total) as advance:
        for item in items:
            yield item
            advance(f"{noun}s")


class Advance(Protocol):
    """Advances a progress bar."""

    def __call__(self, step: str, count: int = 1, /) -> None:
        """Name the step that was done, and how many."""
        ...


@contextmanager
def progress(*, total: int | None = None) -> Generator[Advance]:
    """Yield what advances a progress bar to the next named step; on a terminal only, on stderr."""
    if not sys.stderr.isatty():
        yield lambda _step, _count=1: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    count = MofNCompleteColumn() if total is not None else TextColumn("{task.completed:.0f}")
    columns = (TextColumn("{task.description}"), BarColumn(), count, TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=total)
        yield lambda step, count=1: bar.update(task, description=step, advance=count)


def _write(text: str, stream: TextIO) -> None:
    encoding = stream.encoding or "utf-8"
    click.echo(text.encode(encoding, "backslashreplace").decode(encoding), file=stream, nl=False)
