"""Accuracy on the shared samples: `make eval` prints a line for each measure and fails below a floor.

The samples are in `INGESTION_SAMPLES`, else in `../shared/samples`; a folder of the same layout is measured alike.
Floors only rise: a change that reads worse must not lower one.
"""

import json
import os
import random
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from html import unescape
from pathlib import Path
from typing import Any

from selectolax.lexbor import LexborHTMLParser

from benchmarks import accuracy_labels
from benchmarks.record_accuracy import Measure, catalogues, list_pages
from ingestion_pipeline.catalogs.extraction.entity_type import EntityType
from ingestion_pipeline.catalogs.extraction.selector_learning import TrainingPage, learn_selectors
from ingestion_pipeline.catalogs.extraction.source_selectors import Selectors, records_by_learned
from ingestion_pipeline.reading import decode, to_markdown
from ingestion_pipeline.reading.html.cleaning import visible_tree
from ingestion_pipeline.reading.html.document import Document
from ingestion_pipeline.reading.html.links import following_pages, linked_page, next_page
from ingestion_pipeline.reading.scoring import FieldScore
from ingestion_pipeline.urls import BadUrl, canonical_url, without_session_ids

TRAINING_PAGES = 3
SEEDS = (1, 2, 3, 4, 5)  # which pages of a site are the training pages
SWDE_PEERS = "Web2JSON 0.899, AutoScraper 0.887, AXE 0.881"
_TOKEN = re.compile(r"\w+|[^\w\s]")
KEY_OF = {"job": "title", "university": "name"}  # the field that every page states

Truth = Mapping[str, Sequence[str]]
Pages = Mapping[str, tuple[str, Truth]]


def samples() -> Path:
    """Return the folder of the samples."""
    return Path(os.environ.get("INGESTION_SAMPLES") or Path(__file__).resolve().parents[2] / "shared" / "samples")


def learned_selectors(folder: Path) -> Iterator[Measure]:
    """Learn from three pages of a site, read the others; the mean of F1 over sites, fields and choices of pages."""
    for vertical, key in KEY_OF.items():
        scores: list[float] = []
        count = 0
        for site in sorted((folder / vertical).iterdir()):
            pages = site_pages(site)
            count += len(pages)
            for seed in SEEDS:
                scores += scores_of_site(vertical, key, pages, seed)
        yield Measure(
            name=f"learned selectors, SWDE {vertical}, F1",
            n=count,
            ours=sum(scores) / len(scores),
            floor=0.93,
            peer=SWDE_PEERS,
        )


def site_pages(site: Path) -> Pages:
    """Return text and true values of each page of a site."""
    truth: Mapping[str, Truth] = json.loads((site / "truth.json").read_text())
    return {
        name: (
            decode((site / name).read_bytes(), "text/html"),
            {field: [normal(value) for value in values] for field, values in fields.items()},
        )
        for name, fields in sorted(truth.items())
    }


def scores_of_site(vertical: str, key: str, pages: Pages, seed: int) -> list[float]:
    """Return F1 of each field that any page of the site states."""
    names = sorted(pages)
    random.Random(seed).shuffle(names)
    fields = list(pages[names[0]][1])
    kind = EntityType.model_validate(
        {"name": vertical, "fields": [{"name": name, "kind": "text", "required": name == key} for name in fields]}
    )
    training = [
        TrainingPage(body=body, records=[{name: next(iter(values), None) for name, values in truth.items()}])
        for body, truth in (pages[name] for name in names[:TRAINING_PAGES])
    ]
    learned = learn_selectors(kind, training)
    hits = {field: FieldScore() for field in fields if any(truth[field] for _, truth in pages.values())}
    for name in names[TRAINING_PAGES:]:
        body, truth = pages[name]
        values = read(kind, learned, body)
        for field, tally in hits.items():
            count_value(tally, values.get(field), truth[field])
    return [tally.f1 for tally in hits.values()]


def read(kind: EntityType, learned: Selectors | None, body: str) -> Mapping[str, Any]:
    """Return the values of the page's one record; empty if the selectors read none."""
    records = [] if learned is None else records_by_learned(kind, learned, visible_tree(body))
    return records[0].fields if records else {}


def count_value(hits: FieldScore, value: object, accepted: Sequence[str]) -> None:
    """Count one value against those that the truth accepts; no accepted one: the page states none."""
    is_right = value is not None and normal(str(value)) in accepted
    hits.right += is_right
    hits.wrong += value is not None and not is_right
    hits.missed += bool(accepted) and not is_right


def normal(text: str) -> str:
    """Return the text without entities and repeated blanks: the truth holds raw HTML."""
    return " ".join(unescape(unescape(text)).split())


def pagination(folder: Path) -> Iterator[Measure]:
    """Find the next page and the numbered pages of lists, and none where there is none."""
    following, numbered, without = FieldScore(), FieldScore(), FieldScore()
    for labels in json.loads((folder / "labels.json").read_text()):
        if labels["failed"]:
            continue
        tree = LexborHTMLParser((folder / labels["file"]).read_bytes().decode(labels["Encoding"], "replace"))
        url = labels["Page URL"]
        expected, pages = addresses(tree, url, labels["NEXT"]), addresses(tree, url, labels["PAGE"]) - {plain(url)}
        found = next_page(tree, url)
        if expected:
            following.right += found is not None and plain(found) in expected
            following.missed += found is None or plain(found) not in expected
        elif not labels["NEXT"]:
            is_right = found is None or plain(found) in pages
            without.right, without.wrong = without.right + is_right, without.wrong + (not is_right)
        known = {plain(link.url) for link in following_pages(tree, url)}
        numbered.right, numbered.missed = numbered.right + len(pages & known), numbered.missed + len(pages - known)
    for name, hits, floor in (
        ("next page, recall", following, 0.9),
        ("numbered pages, recall", numbered, 0.85),
        ("no next page where none is labelled", without, 0.9),
    ):
        total = hits.right + hits.wrong + hits.missed
        yield Measure(name=name, n=total, ours=hits.right / max(total, 1), floor=floor)


def addresses(tree: LexborHTMLParser, url: str, css: str) -> set[str]:
    """Return where the links at the selector lead; a label on a part of a link means the link."""
    found: set[str] = set()
    for node in tree.css(css) if css else ():
        link = node if node.tag == "a" else node.css_first("a[href]") or node.parent
        address = None if link is None else linked_page(url, link.attributes.get("href"))
        found |= {plain(address)} if address else set()
    return found


def plain(url: str) -> str:
    """Return the address as it is compared."""
    try:
        return canonical_url(without_session_ids(url)).rstrip("/&")
    except BadUrl:
        return url


def main_content(folder: Path) -> Iterator[Measure]:
    """Count what a model is sent of the pages of SWDE, in words and signs, and the true values that are in it."""
    whole = sent = stated = kept = count = 0
    for vertical in KEY_OF:
        for site in sorted((folder / vertical).iterdir()):
            for body, truth in site_pages(site).values():
                markdown, main = to_markdown(body), Document(body).main_content
                whole, sent, count = whole + tokens(markdown), sent + tokens(main), count + 1
                page, part = normal(markdown), normal(main)
                for values in truth.values():
                    is_stated = any(value in page for value in values)
                    stated, kept = stated + is_stated, kept + (is_stated and any(value in part for value in values))
    yield Measure(name="tokens that a model is not sent, SWDE", n=count, ours=1 - sent / whole, floor=0.5)
    yield Measure(name="true values in what it is sent, SWDE", n=stated, ours=kept / stated, floor=1.0)


def tokens(text: str) -> int:
    """Return the number of words and signs."""
    return len(_TOKEN.findall(text))


def on_swde(folder: Path) -> Iterator[Measure]:
    """Learn selectors, and count what a model is sent."""
    yield from learned_selectors(folder)
    yield from main_content(folder)


MEASURES: Mapping[str, Callable[[Path], Iterator[Measure]]] = {
    "swde": on_swde,
    "autopager": pagination,
    "court_lists": list_pages,
    "courses": catalogues,
    **accuracy_labels.MEASURES,
}


def main() -> int:
    """Print the table; return 1 if a measure is below its floor, 2 without samples."""
    folder = samples()
    present = {name: measure for name, measure in MEASURES.items() if (folder / name).is_dir()}
    if not present:
        print(f"no samples in {folder}; set INGESTION_SAMPLES", file=sys.stderr)
        return 2
    print(f"{'measure':40} {'n':>6} {'ours':>6} {'floor':>6}  published")
    is_low = False
    for name, measure in present.items():
        for line in measure(folder / name):
            is_low |= line.ours < line.floor
            mark = "" if line.ours >= line.floor else "  below its floor"
            print(f"{line.name:40} {line.n:6,} {line.ours:6.3f} {line.floor:6.2f}  {line.peer}{mark}")
    return int(is_low)


if __name__ == "__main__":
    sys.exit(main())
