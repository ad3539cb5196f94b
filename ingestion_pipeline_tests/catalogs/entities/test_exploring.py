"""Which links are explored (trap 12): on the page, of the host, worth it; each once."""

from __future__ import annotations

from ingestion_pipeline.catalogs.extraction import ExtractionMethod, Record, entity_type
from ingestion_pipeline.catalogs.extraction.pipeline import explored_links
from ingestion_pipeline_tests.catalogs.entities.climbing import a_page

COMPETENCY = entity_type("competency")
FOUND = [Record(entity="competency", fields={}, evidence={}, method=ExtractionMethod.LAYOUT, confidence=1)]
HERE = "https://college.test/a"


def explored(html: str, *, url: str = HERE, **more: object) -> tuple[str, ...]:
    return explored_links(COMPETENCY, a_page(html, url=url), FOUND, **more)  # type: ignore[arg-type]


def test_links_are_chosen_by_their_words_and_by_their_address() -> None:
    html = (
        "<a href=/b>Learning outcomes</a><a href=/program-competencies>More</a>"
        "<a href=/fees>Fees</a><a href=/b>Outcomes again</a>"
    )

    assert explored(html) == ("https://college.test/b", "https://college.test/program-competencies")


def test_another_host_the_page_itself_and_what_is_hidden_are_refused() -> None:
    html = (
        "<a href=https://other.test/outcomes>Outcomes</a><a href=/a#top>Outcomes</a>"
        "<a href=//college.test.evil.test/outcomes>Outcomes</a>"
        "<a href=/trap style='display:none'>Outcomes</a><a href=javascript:x()>Outcomes</a>"
        "<a href=http://college.test:81/outcomes>Outcomes</a>"
    )

    assert explored(html) == ()


def test_an_invented_url_is_refused_and_one_on_the_page_is_taken_first() -> None:
    html = "<a href=/outcomes>Outcomes</a><a href=/year-2>Second year</a>"

    found = explored(html, proposed=["https://college.test/secret", "https://college.test/year-2"])

    assert found == ("https://college.test/year-2", "https://college.test/outcomes")


def test_a_loop_gives_the_same_two_pages_for_ever_and_no_third() -> None:
    there = explored("<a href=/b>Outcomes</a>", url="https://college.test/a")
    back = explored("<a href=/a>Outcomes</a>", url="https://college.test/b")

    assert (*there, *back) == ("https://college.test/b", "https://college.test/a")


def test_only_so_many_are_taken() -> None:
    html = "".join(f"<a href=/outcomes/{n}>Outcomes {n}</a>" for n in range(50))

    assert len(explored(html)) == 20


def test_a_page_without_records_and_a_type_that_does_not_explore_lead_nowhere() -> None:
    page = a_page("<a href=/outcomes>Outcomes</a>", url=HERE)

    assert explored_links(COMPETENCY, page, []) == ()
    assert explored_links(entity_type("course"), page, FOUND) == ()
