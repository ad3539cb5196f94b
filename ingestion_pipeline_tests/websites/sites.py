"""Small websites of businesses, and visits to them without a wire."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ingestion_pipeline.reading.html.visible import read_page
from ingestion_pipeline.tasks.errors import Permanent, WorkError
from ingestion_pipeline.websites.states import FetchedPage, Visit

HOME = "https://www.acme-tools.test"

ORGANIZATION = {
    "@context": "https://schema.org",
    "@type": "Organization",
    "name": "Acme Tools GmbH",
    "description": "Acme Tools makes invoicing software for bakeries.",
    "industry": "Accounting software",
    "address": {"addressLocality": "Köln", "addressCountry": "DE"},
    "knowsAbout": ["invoicing", "tax returns", "payroll"],
}


def site_page(body: str = "", *, title: str = "", head: str = "", lang: str = "en") -> str:
    return f"<html lang='{lang}'><head><title>{title}</title>{head}</head><body>{body}</body></html>"


def ld(data: Mapping[str, Any]) -> str:
    return f"<script type='application/ld+json'>{json.dumps(data)}</script>"


ACME = {
    "/": site_page(
        "<nav><ul><li><a href='/about-us'>About</a><li><a href='/acme-vs-globex'>Acme vs Globex</a>"
        "<li><a href='/pricing'>Pricing</a><li><a href='/contact'>Contact</a></ul></nav><main>"
        "<h1>Invoices for bakeries</h1><p>The best alternative to Initech for your bakery.</p>",
        title="Acme Tools | Invoices for bakeries",
        head=ld(ORGANIZATION),
    ),
    "/about-us": site_page("<p>We are Acme Tools, and we have been in Köln since 1990.</p>"),
    "/acme-vs-globex": site_page("<h1>Acme Tools vs Globex</h1>", title="Acme Tools vs Globex"),
    "/contact": site_page("<address>Acme Tools<br>Köln</address>"),
}


def visits(pages: Mapping[str, str | WorkError], seen: list[str] | None = None) -> Visit:
    """A visitor that finds these pages, by their paths, and nothing else."""

    async def visit(url: str) -> FetchedPage:
        path = "/" + url.partition("://")[2].partition("/")[2]
        if seen is not None:
            seen.append(path)
        found = pages.get(path, Permanent(f"{url} answered 404", code="http_404"))
        if isinstance(found, WorkError):
            raise found
        return FetchedPage(url=url, html=found, links=read_page(found, url=url).links)

    return visit
