"""The demo's companies: two with job boards, and two businesses whose websites are analysed.

Openings and facts are declared here as the pipeline must extract them; a mutation changes the openings of one board
and the description of one business. Only one opening, which is old, states when it was posted: the site has no clock.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from ingestion_pipeline.demo.content import HTML, DemoContent, DemoState, Query, html_page, json_page, plain
from ingestion_pipeline.websites.business import Business

SALTMARSH_HOST, RADWERFT_HOST = "saltmarsh.demo.test", "radwerft.demo.test"
GULLWING, PEBBLE = "Gullwing Coffee", "Pebble Roastery"
PEDALHAFEN, KETTENWERK = "Pedalhafen", "Kettenwerk"

SALTMARSH = Business(
    url=f"http://{SALTMARSH_HOST}/",
    name="Saltmarsh Coffee",
    industry="freshly roasted coffee",
    description="Saltmarsh Coffee roasts small batches by the sea and sends them anywhere.",
    location="Whitby, GB",
    keywords=("espresso beans", "coffee subscription boxes", "cold brew"),
    language="en",
    competitors=(GULLWING, PEBBLE),
)
RADWERFT = Business(
    url=f"http://{RADWERFT_HOST}/",
    name="Radwerft",
    industry="Fahrradwerkstatt",
    description="Die Radwerft baut und repariert Lastenräder am Kieler Hafen.",
    location="Kiel, DE",
    keywords=("Lastenräder", "Fahrradreparatur", "Leasingräder"),
    language="de",
    competitors=(PEDALHAFEN, KETTENWERK),
)
MUTATED_DESCRIPTION = "Saltmarsh Coffee roasts small batches by the sea, and tea, too."
_REGISTERED = {SALTMARSH.url: "The Saltmarsh Coffee Company Ltd.", RADWERFT.url: "Radwerft GmbH"}


def businesses(state: DemoState) -> dict[str, Business]:
    """Return what each website states about its business now, by source."""
    saltmarsh = SALTMARSH
    if state.new_chapters:
        saltmarsh = replace(SALTMARSH, description=MUTATED_DESCRIPTION)
    return {"website:saltmarsh": saltmarsh, "website:radwerft": RADWERFT}


def saltmarsh(state: DemoState, path: str, _query: Query) -> DemoContent:
    """Return a page of the roaster: a front page with structured data, and two more."""
    business = businesses(state)["website:saltmarsh"]
    navigation = '<a href="/about">About us</a> <a href="/compare">How we compare</a>'
    bodies = {
        "/": (
            f"<h1>Coffee from the edge of the sea</h1><p>{business.description}</p>"
            f"<p>Many come to us looking for an alternative to {GULLWING}.</p>{navigation}"
        ),
        "/about": "<h1>About us</h1><p>We have roasted in Whitby since 1998.</p>",
        "/compare": f"<h1>{SALTMARSH.name} vs {PEBBLE}</h1><p>Theirs is darker.</p>",
    }
    return _page(business, bodies, path)


def radwerft(state: DemoState, path: str, _query: Query) -> DemoContent:
    """Return a page of the bicycle shop, in German."""
    business = businesses(state)["website:radwerft"]
    navigation = '<a href="/ueber-uns">Über uns</a> <a href="/vergleich">Vergleich</a>'
    bodies = {
        "/": (
            f"<h1>Lastenräder vom Hafen</h1><p>{business.description}</p>"
            f"<p>Die Alternative zu {PEDALHAFEN} für alle, die täglich fahren.</p>{navigation}"
        ),
        "/ueber-uns": "<h1>Über uns</h1><p>Seit 2004 am Hafen, mit acht Leuten.</p>",
        "/vergleich": f"<h1>{RADWERFT.name} vs {KETTENWERK}</h1><p>Dort wird nicht gebaut.</p>",
    }
    return _page(business, bodies, path)


def _page(business: Business, bodies: dict[str, str], path: str) -> DemoContent:
    if path not in bodies:
        return plain(404, "Not Found")
    stated = json.dumps(_stated(business), ensure_ascii=False) if path == "/" else "{}"
    text = (
        f'<!DOCTYPE html>\n<html lang="{business.language}"><head><meta charset="utf-8">'
        f"<title>{business.name}</title>"
        f'<script type="application/ld+json">{stated}</script></head>'
        f"<body><main>{bodies[path]}</main></body></html>\n"
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

REMOTE, HOME = "Remote, US", "Portland, OR (Hybrid)"
_TEAM = (
    "You join a small team that keeps tide gauges, buoys and harbour lights talking to each"
    " other, day and night. We review each other's work, write down what we decide, and rest"
    " when the watch is over. There is a boat for lunch on Fridays, weather permitting. "
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """A job; `outcome` is the priority of a match, `skipped`, or the rule that filters it."""

    id: int
    title: str
    outcome: str
    text: str
    location: str = REMOTE
    team: str = _TEAM
    salary: tuple[int, int] | None = (160_000, 190_000)
    kind: str | None = None
    posted: str | None = None

    @property
    def description(self) -> str:
        """Return the description in HTML."""
        return f"<p>{self.team}</p><p>{self.text}</p>"


# What the others leave at its default.
_DETAILS: dict[int, dict[str, Any]] = {
    101: {"location": HOME},
    104: {"location": HOME},
    108: {"kind": "Contract"},
    111: {"salary": (70_000, 90_000)},
    112: {"salary": None},
    113: {"location": "Hamburg, Germany (On-site)"},
    114: {"posted": "2026-01-05T09:00:00Z"},
    201: {"location": "Portland, OR"},
}


def _openings(lines: str) -> tuple[Opening, ...]:
    """Parse jobs from lines: id, outcome, title and text, by bars."""
    parts = (line.split("|") for line in lines.strip().splitlines())
    return tuple(
        Opening(id=int(id_), outcome=outcome, title=title, text=text, **_DETAILS.get(int(id_), {}))
        for id_, outcome, title, text in parts
    )


# Job 106 has four strikes, which pass; 116 is on the stop list, before anything else is looked at.
_DRIFTWOOD = _openings("""
101|high|Senior Backend Engineer|Services in Python and Go, PostgreSQL below, Kubernetes around them.
102|high|Senior Data Engineer|Pipelines in Python on PostgreSQL and Kubernetes.
103|medium|Senior Systems Engineer|Python and PostgreSQL, Kubernetes for the rest, and some Terraform.
104|low|Harbour Software Engineer|Python on Kubernetes, with Kafka between the gauges and Terraform below them.
105|skipped|Senior Frontend Engineer|TypeScript and React for the charts, with a little Python behind them.
106|skipped|Senior Web Engineer|Our WordPress site wants a rockstar who knows Python, too.
107|strikes|Senior Website Engineer|WordPress, PHP, and Python where nobody looks.
108|job_type|Senior Python Engineer, Contract|Python for the length of one winter.
109|seniority|Junior Python Engineer|Python from the beginning.
110|keyword|Senior Naval Engineer|Python behind a fence: a security clearance is needed.
111|salary|Senior Backend Engineer, Buoys|Python and PostgreSQL on Kubernetes, for those who love buoys.
112|commission|Senior Sales Engineer|Python demos by the pier; the pay is commission only.
113|work_mode|Senior Engineer, Hamburg|Python and PostgreSQL on the Elbe.
114|age|Senior Archive Engineer|Python for logbooks that have been waiting for a while.
115|technology|Senior Mainframe Engineer|Python around COBOL that has run since the lighthouse was built.
116|skipped|Senior Blockchain Engineer|Python and tokens for moorings.
""")
_SHARED = _DRIFTWOOD[1]
_KESTREL = _openings("""
201|high|Senior Robotics Engineer|Go and Python for small robots, PostgreSQL for what they have seen.
202|seniority|Robotics Intern|Python, and a screwdriver.
""")
[ADDED] = _openings("""
117|high|Staff Platform Engineer|Kubernetes for everybody, Go and Python for those who ask, PostgreSQL underneath.
""")
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
    return _SHARED


DRIFTWOOD_HOST = "driftwood.demo.test"
BOARDS_HOST = "boards.demo.test"
KESTREL_HOST = "kestrel.demo.test"
DRIFTWOOD, KESTREL = "Driftwood Systems", "Kestrel Robotics"
KESTREL_SITE = f"http://{KESTREL_HOST}/"
API_PATH = "/v1/boards/driftwood/jobs"
CENTS = 100
# Fields that the API renames while the site is broken.
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
    """Return one of the three pages of the company; its jobs are on the board."""
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
        body = f"<h1>{KESTREL}</h1><p>Small robots.</p>" + _NAVIGATION
        return html_page(KESTREL, body, footer=KESTREL)
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
