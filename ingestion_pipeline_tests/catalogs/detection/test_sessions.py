"""Catalogues that write a session into every link: neither recipe nor pages have one."""

from __future__ import annotations

import itertools
import json
import re

import pytest

from ingestion_pipeline.engine.context import RunContext
from ingestion_pipeline.store.tables import datasets
from ingestion_pipeline_tests.catalogs.detection import sites
from ingestion_pipeline_tests.catalogs.detection.finding import a_found_catalog, detect, recipe_row
from ingestion_pipeline_tests.crawlers import begin, crawl_all, found_pages
from ingestion_pipeline_tests.fakes import AnsweredBy, FakeWeb
from ingestion_pipeline_tests.pollers import given_sources, rows

SESSIONS = {
    "java": lambda path, number: f"{path};jsessionid={number:032X}",
    "php": lambda path, number: f"{path}{'&' if '?' in path else '?'}PHPSESSID=s{number}",
    "hex": lambda path, number: f"{path}{'&' if '?' in path else '?'}sid={number * 7919:x}a1b2c3",
    "asp": lambda path, number: f"/(S({number:024}))/{path.lstrip('/')}",
    "campaign": lambda path, number: f"{path}{'&' if '?' in path else '?'}utm_term=x{number}",
}


@pytest.mark.parametrize("kind", SESSIONS)
def test_session_ids_enter_neither_recipe_nor_pages_of_a_categorised_catalogue(
    ctx: RunContext, web: FakeWeb, kind: str
) -> None:
    """Every answer has another session in all of its links; 40 courses in seven categories."""
    catalogue = sites.Categorised()
    site, numbers = catalogue.pages(), itertools.count(1)

    def answer(asked: str) -> str | None:
        number = next(numbers)
        path = re.sub(r";jsessionid=\w+|/\(S\(\w+\)\)|[?&](PHPSESSID|sid|utm_term)=\w+", "", asked)
        html = site.get(path)
        if html is None:
            return None
        link = re.compile("(?<=href=')[^']+")
        return link.sub(lambda found: SESSIONS[kind](found[0], number), html)

    web.routes = AnsweredBy(answer)
    given_sources(ctx.store, a_found_catalog("/catalog"))

    begin(ctx, web)
    assert detect(ctx, web).found == 1
    web.requests.clear()
    crawl_all(ctx, web.port)

    assert not re.search(r"sess|sid=|S\(|utm", json.dumps(recipe_row(ctx.store).recipe))
    details = [one for one in found_pages(ctx.store) if one.step == "root/links/links"]
    assert sorted(one.path for one in details) == sorted(catalogue.courses)
    assert len(web.paths) == len(set(web.paths))
    [dataset] = rows(ctx.store, datasets)
    assert (dataset.status, dataset.item_count) == ("published", len(catalogue.courses))
