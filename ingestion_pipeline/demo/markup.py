"""Answers that the demo's catalogues have in common: HTML, text, a way on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ingestion_pipeline.demo.content import DemoContent, natural

HTML = "text/html; charset=utf-8"
Query = Mapping[str, Sequence[str]]


def html_page(title: str, body: str, *, footer: str, head: str = "") -> DemoContent:
    """A page in English and UTF-8; title, body, footer and head are markup already."""
    text = (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>'
        f"{head}</head>"
        f"<body>{body}<footer>{footer}</footer></body></html>\n"
    )
    return DemoContent(body=text.encode(), content_type=HTML)


def text_page(text: str) -> DemoContent:
    """Plain text, such as robots.txt."""
    return DemoContent(body=text.encode(), content_type="text/plain; charset=utf-8")


def moved(location: str) -> DemoContent:
    """The page is elsewhere, for now."""
    return DemoContent(body=b"", content_type=HTML, status_code=302, location=location)


def asked(query: Query, name: str, default: int) -> int | None:
    """The number in a query, the default if it is not given; None if it is no natural number."""
    return natural(query.get(name, [str(default)])[-1])
