"""A series that only a web page lists: two pages, a layout of nobody else's, dates in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from ingestion_pipeline.demo.content import DemoContent, plain
from ingestion_pipeline.demo.state import DemoState
from ingestion_pipeline.demo.stories import DemoChapter, clockmaker_chapters

LISTS_HOST = "lists.demo.test"
ROWS_ON_A_PAGE = 10
# The newest rows say how long ago they came out. They always say the same, as a page does that
# nobody has built anew: the site has no clock.
AGO = ("yesterday", "3 days ago", "1 week ago")


def clockmaker_list(state: DemoState, query: Mapping[str, Sequence[str]]) -> DemoContent:
    """The Clockmaker's Map, newest first, ten rows a page; a page past the end is a 404."""
    rows = _rows(clockmaker_chapters(state))
    number = query.get("page", ["1"])[-1]
    pages = [rows[start : start + ROWS_ON_A_PAGE] for start in range(0, len(rows), ROWS_ON_A_PAGE)]
    if number not in map(str, range(1, len(pages) + 1)):
        return plain(404, "Not Found")
    return _page(pages[int(number) - 1], number=int(number), is_last=int(number) == len(pages))


def _rows(chapters: Sequence[DemoChapter]) -> list[str]:
    newest_first = list(reversed(chapters))
    dates = [f"{one.published_at:%B %d, %Y}" for one in newest_first]
    dates[: len(AGO)] = AGO
    return [_row(one, date) for one, date in zip(newest_first, dates, strict=True)]


def _row(chapter: DemoChapter, date: str) -> str:
    return (
        f'<tr class="part" id="part-{chapter.number}"><td class="no">No. {chapter.number}</td>'
        f'<td class="what"><a href="clockmaker/{chapter.number}#top">{escape(chapter.title)}</a>'
        f'</td><td class="when">{date}</td></tr>'
    )


def _page(rows: Sequence[str], *, number: int, is_last: bool) -> DemoContent:
    older = "" if is_last else f'<a class="older" href="?page={number + 1}">Older parts</a>'
    body = "\n".join(
        [
            "<!DOCTYPE html>",
            '<html lang="en"><head><meta charset="utf-8">',
            "<title>The Clockmaker's Map</title></head>",
            "<body><h1>The Clockmaker's Map</h1><table>",
            *rows,
            f"</table><p>{older}</p></body></html>",
            "",
        ]
    )
    return DemoContent(body=body.encode(), content_type="text/html; charset=utf-8")
