"""The demo's companies: two with job boards, and two businesses whose websites are analysed.

Openings and facts are declared here as the pipeline must extract them; a mutation changes the openings of one board
and the description of one business. Only one opening, which is old, states when it was posted: the site has no clock.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

from pydantic import TypeAdapter

from ingestion_pipeline.demo.content import HTML, PUBLISHED, DemoContent, DemoState, Query, html_page, json_page, plain
from ingestion_pipeline.websites.business import Business

SALTMARSH_HOST, RADWERFT_HOST = "saltmarsh.demo.test", "radwerft.demo.test"
_BUSINESSES = TypeAdapter(dict[str, Business]).validate_python(PUBLISHED["businesses"])
SALTMARSH, RADWERFT = _BUSINESSES["saltmarsh"], _BUSINESSES["radwerft"]
MUTATED_DESCRIPTION = "Saltmarsh Coffee roasts small batches by the sea, and tea, too."
_REGISTERED = {SALTMARSH.url: "The Saltmarsh Coffee Company Ltd.", RADWERFT.url: "Radwerft GmbH"}


def businesses(state: DemoState) -> dict[str, Business]:
    """Return what each website states about its business now, by source."""
    mutated = replace(SALTMARSH, description=MUTATED_DESCRIPTION)
    return {"website:saltmarsh": mutated if state.new_chapters else SALTMARSH, "website:radwerft": RADWERFT}


def saltmarsh(state: DemoState, path: str, _query: Query) -> DemoContent:
    """Return a page of the roaster: a front page with structured data, and two more."""
    return _page(businesses(state)["website:saltmarsh"], PUBLISHED["pages"]["saltmarsh"], path)


def radwerft(state: DemoState, path: str, _query: Query) -> DemoContent:
    """Return a page of the bicycle shop, in German."""
    return _page(businesses(state)["website:radwerft"], PUBLISHED["pages"]["radwerft"], path)


def _page(business: Business, bodies: dict[str, str], path: str) -> DemoContent:
    if path not in bodies:
        return plain(404, "Not Found")
    stated = json.dumps(_stated(business), ensure_ascii=False) if path == "/" else "{}"
    body = bodies[path].format(description=business.description)
    text = (
        f'<!DOCTYPE html>\n<html lang="{business.language}"><head><meta charset="utf-8">'
        f"<title>{business.name}</title>"
        f'<script type="application/ld+json">{stated}</script></head>'
        f"<body><main>{body}</main></body></html>\n"
    )
    return DemoContent(body=text.encode(), content_type=HTML)


def _stated(business: Business) -> dict[str, object]:
    place, _, country = (business.location or "").partition(", ")
    return {
        "@context": "https://schema.org",
        "@type": "Organization",
        "name": _REGISTERED[business.url],
        "description": business.description,
        "industry": business.industry,
        "address": {"@type": "PostalAddress", "addressLocality": place, "addressCountry": country},
        "knowsAbout": list(business.keywords),
    }


PRIORITIES = HIGH, MEDIUM, LOW = "high", "medium", "low"
SKIPPED = "skipped"


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """A job; `outcome` is the priority of a match, `skipped`, or the rule that filters it."""

    id: int
    title: str
    outcome: str
    text: str
    location: str = "Remote, US"
    team: str = PUBLISHED["team"]
    salary: tuple[int, int] | None = (160_000, 190_000)
    kind: str | None = None
    posted: str | None = None

    @property
    def description(self) -> str:
        """Return the description in HTML."""
        return f"<p>{self.team}</p><p>{self.text}</p>"


_OPENINGS = TypeAdapter(dict[str, tuple[Opening, ...]]).validate_python(PUBLISHED["openings"])
_DRIFTWOOD, _KESTREL = _OPENINGS["driftwood"], _OPENINGS["kestrel"]
[ADDED] = _OPENINGS["added"]
CHANGED = 111  # pays better after a mutation
GONE = 103


def driftwood_openings(state: DemoState) -> Sequence[Opening]:
    """Return the board's jobs; after a mutation one is new, one pays better, one is gone."""
    if not state.new_chapters:
        return _DRIFTWOOD
    changed = [
        replace(opening, salary=(170_000, 200_000), outcome=HIGH) if opening.id == CHANGED else opening
        for opening in _DRIFTWOOD
        if opening.id != GONE
    ]
    return [*changed, ADDED]


def kestrel_openings() -> Sequence[Opening]:
    """Return the jobs on Kestrel's own page, besides one of Driftwood's (`repeated`)."""
    return _KESTREL


def repeated() -> Opening:
    """Return the job that both boards list: one listing with two links."""
    return _DRIFTWOOD[1]


DRIFTWOOD_HOST = "driftwood.demo.test"
BOARDS_HOST = "boards.demo.test"
KESTREL_HOST = "kestrel.demo.test"
DRIFTWOOD, KESTREL = "Driftwood Systems", "Kestrel Robotics"
KESTREL_SITE = f"http://{KESTREL_HOST}/"
API_PATH = "/v1/boards/driftwood/jobs"
CENTS = 100
# Fields that the API renames while the site is broken.
RENAMED = {"content": "body", "location": "place"}


def driftwood(_state: DemoState, path: str, _query: Query) -> DemoContent:
    """Return one of the three pages of the company; its jobs are on the board."""
    bodies: dict[str, str] = PUBLISHED["pages"]["driftwood"]
    if path not in bodies:
        return plain(404, "Not Found")
    return html_page(DRIFTWOOD, bodies[path], footer=DRIFTWOOD)


def boards(state: DemoState, path: str, _query: Query) -> DemoContent:
    """Return the provider's API response: all jobs of one board at once."""
    if path != API_PATH:
        return json_page({"status": 404, "error": "Job board not found"}, 404)
    items = [_item(opening) for opening in driftwood_openings(state)]
    if state.is_broken:
        items = [{RENAMED.get(name, name): value for name, value in item.items()} for item in items]
    return json_page({"jobs": items, "meta": {"total": len(items)}})


def _item(opening: Opening) -> dict[str, object]:
    item: dict[str, object] = {
        "id": opening.id,
        "title": opening.title,
        "absolute_url": f"http://{BOARDS_HOST}/driftwood/jobs/{opening.id}",
        "company_name": DRIFTWOOD,
        "location": {"name": opening.location},
        "content": opening.description,
        "metadata": [],
    }
    if opening.kind:
        item["metadata"] = [{"name": "Employment Type", "value": opening.kind}]
    if opening.posted:
        item["first_published"] = opening.posted
    if opening.salary:
        low, high = opening.salary
        pay = {"min_cents": low * CENTS, "max_cents": high * CENTS, "currency_type": "USD"}
        item["pay_input_ranges"] = [{**pay, "title": "Annual salary"}]
    return item


def kestrel(_state: DemoState, path: str, _query: Query) -> DemoContent:
    """Return a minimal front page, or a careers page with structured data."""
    if path == "/":
        return html_page(KESTREL, PUBLISHED["pages"]["kestrel"]["/"], footer=KESTREL)
    if path == "/careers":
        return _kestrel_careers()
    return plain(404, "Not Found")


def _kestrel_careers() -> DemoContent:
    own = [_posting(opening, KESTREL) for opening in kestrel_openings()]
    shared = _posting(repeated(), f"{DRIFTWOOD}, Inc.")  # Driftwood's job, under its full name
    stated = json.dumps([*own, shared]).replace("</", "<\\/")
    listed = "".join(f"<li>{posting['title']}</li>" for posting in (*own, shared))
    return html_page(
        f"Careers, {KESTREL}",
        f"<h1>Careers</h1><ul>{listed}</ul>",
        footer=KESTREL,
        head=f'<script type="application/ld+json">{stated}</script>',
    )


def _posting(opening: Opening, company: str) -> dict[str, object]:
    organization = {"@type": "Organization", "name": company}
    if company == KESTREL:
        organization["sameAs"] = KESTREL_SITE
    return {
        "@context": "https://schema.org",
        "@type": "JobPosting",
        "identifier": str(opening.id),
        "url": f"http://{KESTREL_HOST}/careers/{opening.id}",
        "title": opening.title,
        "description": opening.description,
        "hiringOrganization": organization,
        "jobLocation": {"@type": "Place", "address": opening.location},
    }
