"""Companies as work: one polite pass, facts with evidence, boards discovered, nothing twice."""

from __future__ import annotations

from ingestion_pipeline.pages.workshop import Workshop
from ingestion_pipeline_tests.companies.sites import (
    ABOUT,
    API,
    CULTURE,
    a_board,
    a_company,
    a_site,
    begin,
    company_row,
    serve,
    work,
)
from ingestion_pipeline_tests.fakes import FakeWeb
from ingestion_pipeline_tests.pollers import given_sources


def given_acme(shop: Workshop, web: FakeWeb, **changes: object) -> None:
    serve(web, a_site())
    serve(web, {API: a_board("Engineer", "Sorter")}, host="api.test")
    given_sources(shop.store, a_company(**changes))
    begin(shop, web)


def test_a_poll_makes_the_record_at_once_and_the_analysis_fills_it(
    shop: Workshop, web: FakeWeb
) -> None:
    given_acme(shop, web)
    before = company_row(shop.store)

    counts = work(shop, web.port, ranks={"Python": 40, "go": 45, "cobol": 50})

    assert (before.status, before.name, before.website) == ("pending", None, "http://acme.test/")
    assert counts == {"analysed": 1, "boards_active": 1}
    row = company_row(shop.store)
    assert (row.status, row.name, row.founded) == ("active", "Acme Robotics", 2011)
    assert (row.about.split("\n")[0], row.culture) == (ABOUT, CULTURE)
    assert row.mission == "Our mission is to give every parcel a quiet way home."
    assert (row.size, row.employees_low, row.employees_high) == ("51-200", 51, 200)
    assert (row.size_category, row.headquarters) == ("medium", "Portland, OR, US")
    assert row.industry is None
    assert row.is_remote_first is True
    assert row.tech_stack["languages"] == ["python", "go"]
    assert row.score_parts == {"city": 50, "tech": 85, "remote": 15, "machine_learning": 10}
    assert (row.score, row.tier) == (160, "S")
    assert (row.quality["level"], row.quality["missing"]) == ("good", ["industry"])
    assert row.evidence["founded"]["rung"] == "embedded"
    assert row.evidence["culture"]["status"] == "exact"
