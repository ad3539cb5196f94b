"""Two companies that look for people: one with a board at a provider, one with a page of its own.

Driftwood Systems says a lot of itself, and its jobs are behind an API in Greenhouse's shape.
Kestrel Robotics says next to nothing; each of its jobs names the company's site again, which is
where that job came from: a circle, if nobody remembered the way.
"""

from __future__ import annotations

import json

from ingestion_pipeline.demo.content import DemoContent, json_page, plain
from ingestion_pipeline.demo.markup import Query, html_page
from ingestion_pipeline.demo.openings import (
    Opening,
    driftwood_openings,
    kestrel_openings,
    repeated,
)
from ingestion_pipeline.demo.state import DemoState

DRIFTWOOD_HOST = "driftwood.demo.test"
BOARDS_HOST = "boards.demo.test"
KESTREL_HOST = "kestrel.demo.test"
DRIFTWOOD, KESTREL = "Driftwood Systems", "Kestrel Robotics"
KESTREL_SITE = f"http://{KESTREL_HOST}/"
API_PATH = "/v1/boards/driftwood/jobs"
CENTS = 100
# On a bad day the API has other names for these: nobody told its readers.
RENAMED = {"content": "body", "location": "place"}

_NAVIGATION = '<nav><a href="/about">About</a> <a href="/careers">Careers</a></nav>'
_ABOUT = (
    "<h1>About us</h1><p>Driftwood Systems builds the software that harbours run on: tide gauges,"
    " berths and lights, watched from one desk. We were founded in 2009, have 400 employees and"
    " are headquartered in Portland, Oregon.</p>"
    "<h2>Our culture</h2><p>We are remote-first, write things down, and nobody sails alone: every"
    " change is read by somebody else before it leaves the harbour.</p>"
    "<h2>How we build</h2><p>Python, Go, PostgreSQL and Kubernetes, on AWS.</p>"
)


def driftwood(_state: DemoState, path: str, _query: Query) -> DemoContent:
    """Three pages of a company that is glad to be read; jobs are elsewhere."""
    bodies = {
        "/": f"<h1>{DRIFTWOOD}</h1><p>Harbours, in order.</p>{_NAVIGATION}",
        "/about": _ABOUT + _NAVIGATION,
        "/careers": (
            "<h1>Careers</h1><p>All jobs are on our board:"
            ' <a href="https://boards.greenhouse.io/driftwood">open positions</a>.</p>'
        ),
    }
    if path not in bodies:
        return plain(404, "Not Found")
    return html_page(DRIFTWOOD, bodies[path], footer=DRIFTWOOD)


def boards(state: DemoState, path: str, _query: Query) -> DemoContent:
    """The provider's API: all jobs of one board at once."""
    if path != API_PATH:
        return json_page({"status": 404, "error": "Job board not found"}, 404)
    items = [_item(one) for one in driftwood_openings(state)]
    if state.is_broken:
        items = [{RENAMED.get(name, name): value for name, value in one.items()} for one in items]
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
    """A front page of one line, and a careers page that states its jobs for machines."""
    if path == "/":
        body = f"<h1>{KESTREL}</h1><p>Small robots.</p>" + _NAVIGATION
        return html_page(KESTREL, body, footer=KESTREL)
    if path == "/careers":
        return _kestrel_careers()
    return plain(404, "Not Found")


def _kestrel_careers() -> DemoContent:
    own = [_posting(one, KESTREL) for one in kestrel_openings()]
    shared = _posting(repeated(), f"{DRIFTWOOD}, Inc.")  # our friends' job, under their full name
    stated = json.dumps([*own, shared]).replace("</", "<\\/")
    listed = "".join(f"<li>{one['title']}</li>" for one in (*own, shared))
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
