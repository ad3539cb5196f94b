"""Two businesses with a website each: a coffee roaster in English, a bicycle shop in German.

Their facts are declared here as the pipeline must extract them; a mutation changes the roaster's
description.
"""

import json
from dataclasses import replace

from ingestion_pipeline.demo.content import HTML, DemoContent, Query, plain
from ingestion_pipeline.demo.state import DemoState
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
