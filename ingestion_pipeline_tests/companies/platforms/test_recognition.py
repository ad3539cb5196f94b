"""Lists of jobs recognised on pages of any layout; an uncertain list is refused."""

import pytest

from ingestion_pipeline.companies.platforms import BadConfig, platform
from ingestion_pipeline.companies.platforms.recognition import recognised_jobs
from ingestion_pipeline.reading.html.document import Document
from ingestion_pipeline.tasks.errors import Permanent

URL = "https://acme.test/careers"
MENU = "<nav><a href='/about'>About us</a><a href='/careers'>Careers</a><a href='/blog'>Blog</a></nav>"
FOOT = "<footer><a href='/jobs/a'>Engineer privacy</a><a href='/jobs/b'>Manager terms</a></footer>"


def page(body: str) -> str:
    return f"<html><body>{MENU}<main><h1>Work with us</h1>{body}</main>{FOOT}</body></html>"


CARDS = "".join(
    f"<div class='card'><h3>{title}</h3><span class='job-location'>{place}</span>"
    f"<p>Full-time</p><a class='more' href='/careers/{n}'>Learn more</a></div>"
    for n, (title, place) in enumerate([("Data Engineer", "Oslo"), ("Welder", "Bergen")])
)
ROWS = "".join(
    f"<tr class='row{n}'><td><a href='detail.php?job_id={n}'>{title}</a></td><td class='city'>Porto</td></tr>"
    for n, title in enumerate(["Sales Manager", "Head of Painting", "Porter"])
)
WHOLE = "".join(
    f"<li><a href='https://jobs.acme.test/o/{n}'><div>{title}</div><span>Köln</span></a></li>"
    for n, title in enumerate(["Entwickler (m/w/d)", "Bäcker (m/w/d)", "Sachbearbeiterin"])
)


@pytest.mark.parametrize(
    ("body", "titles", "last"),
    [
        (CARDS, ["Data Engineer", "Welder"], "https://acme.test/careers/1"),
        (
            f"<table>{ROWS}</table>",
            ["Sales Manager", "Head of Painting", "Porter"],
            "https://acme.test/detail.php?job_id=2",
        ),
        (
            f"<ul>{WHOLE}</ul>",
            ["Entwickler (m/w/d)", "Bäcker (m/w/d)", "Sachbearbeiterin"],
            "https://jobs.acme.test/o/2",
        ),
    ],
    ids=["cards", "rows", "links"],
)
def test_jobs_are_recognised_by_repeated_blocks(body: str, titles: list[str], last: str) -> None:
    jobs = recognised_jobs(Document(page(body)), url=URL)

    assert [job["title"] for job in jobs] == titles
    assert jobs[-1]["url"] == last


def test_a_block_gives_its_location_and_employment_type() -> None:
    first = recognised_jobs(Document(page(CARDS)), url=URL)[0]

    assert (first["location"], first["employment_type"]) == ("Oslo", "Full-time")


@pytest.mark.parametrize(
    "body",
    [
        "<p>We are always looking for an engineer. <a href='/careers/apply'>Apply</a></p>",
        "<ul><li><a href='/careers/benefits'>Benefits</a></li>"
        "<li><a href='/careers/teams'>Teams</a></li>"
        "<li><a href='/careers/life'>Life at Acme</a></li></ul>",
        "<ul><li><a href='/blog/1'>How we rebuilt our kitchen</a></li>"
        "<li><a href='/blog/2'>Ten years of parcels</a></li></ul>",
        "<div class='card'><a href='/careers/1'>Data Engineer</a></div>",
        "<a href='/careers/1'>Data Engineer</a><a href='/careers/1'>Data Engineer</a>",
        "<div id='root'></div>",
        "",
    ],
    ids=["prose", "menu", "blog", "one", "the same", "a script's", "empty"],
)
def test_an_uncertain_list_of_jobs_is_refused_and_never_empty(body: str) -> None:
    board = platform("html").configure(URL, {"recognise": True})

    assert recognised_jobs(Document(page(body)), url=URL) == []
    with pytest.raises(Permanent, match="no list of jobs is recognised"):
        board.read([page(body).encode()], content_types=["text/html"])


def test_a_recognised_board_gives_a_complete_list_of_listings() -> None:
    board = platform("html").configure(URL, {"recognise": True, "company": "Acme"})

    reading = board.read([page(CARDS).encode()], content_types=["text/html"])

    assert [(listing.title, listing.location, listing.company) for listing in reading.records] == [
        ("Data Engineer", "Oslo", "Acme"),
        ("Welder", "Bergen", "Acme"),
    ]
    assert reading.is_complete


def test_selectors_together_with_recognition_are_refused() -> None:
    with pytest.raises(BadConfig, match="items"):
        platform("html").configure(URL, {"recognise": True, "items": "li"})
