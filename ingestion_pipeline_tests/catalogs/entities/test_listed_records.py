"""Records of list pages by an entity type of the user's: title, date, address and fields by examples."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from ingestion_pipeline.catalogs.extraction.entity_type import BadEntityType, EntityType, entity_type
from ingestion_pipeline.catalogs.extraction.pipeline import read_records
from ingestion_pipeline.reading.html.document import Document
from ingestion_pipeline_tests.cli.conftest import Ingest

REPORT: dict[str, Any] = {
    "name": "report",
    "fields": [
        {"name": "title", "kind": "text", "required": True},
        *({"name": name, "kind": "text"} for name in ("day", "link", "number")),
    ],
    "key": ["title", "link"],
    "repeated": {
        "title": "title",
        "date": "day",
        "url": "link",
        "examples": {
            "title": ["Report on the state of rivers", "Report on the price of bread", "Notes on harbours"],
            "number": ["A-12/2024"],
        },
    },
}
ROWS = [
    ("Report on the fish of the lakes", "2024-03-05", "/r/1.pdf", "A-3/2024"),
    ("Report on the roads in winter", "2024-02-20", "/r/2.pdf", "A-2/2024"),
    ("Notes on the old bridges", "2024-01-31", "/r/3.pdf", "B-1/2023"),
]
MENU = "<ul class=menu>" + "".join(f"<li><a href=/s/{number}>Section {number}</a>" for number in range(20)) + "</ul>"
MONTHS = {"01": "January", "02": "February", "03": "March"}


def in_words(day: str) -> str:
    year, month, number = day.split("-")
    return f"{MONTHS[month]} {int(number)}, {year}"


def table() -> str:
    rows = "".join(
        f"<tr class={'odd' if at % 2 else 'even'}><td>{number}<td>{day}<td><a href='{link}'>{title}</a>"
        for at, (title, day, link, number) in enumerate(ROWS)
    )
    return f"<table><tr><th>No<th>Date<th>Title{rows}</table>"


def cards() -> str:
    return "".join(
        f"<div class=card><h3><a href='{link}'>{title}</a></h3><p>{number}</p><time>{in_words(day)}</time></div>"
        for title, day, link, number in ROWS
    )


def flat() -> str:
    lines = (
        f"Filed {in_words(day)}, No. {number}<br><a href='{link}'>{title}</a><br>" for title, day, link, number in ROWS
    )
    return f"<div>{''.join(lines)}</div>"


def below_days() -> str:
    return "".join(
        f"<h4>{in_words(day)}</h4><ul><li>{number}: <a href='{link}'>{title}</a></ul>"
        for title, day, link, number in ROWS
    )


def with_buttons() -> str:
    return "".join(
        f"<article><h2>{title}</h2><p>{number}, {in_words(day)}</p><a href='/about/{number}'>About</a>"
        f"<button onclick=\"window.open('{link}')\">Download</button></article>"
        for title, day, link, number in ROWS
    )


def labelled() -> str:
    return "".join(
        f"<p><b>Title:</b> {title}<br><b>Posted:</b> May 1, 2025<br><b>Decided:</b> {in_words(day)}<br><b>Number:</b>"
        f" {number}<br><a href='{link}'>View</a></p>"
        for title, day, link, number in ROWS
    )


def read(page: str) -> list[tuple[Any, ...]]:
    kind = EntityType.model_validate(REPORT)
    document = Document(f"<body>{MENU}<h1>Reports</h1>{page}</body>", url="https://a.test/list")
    records = [record.fields for record in read_records(kind, document).records]
    return [(record["title"], record["day"], record["link"], record["number"]) for record in records]


@pytest.mark.parametrize(
    "page", [table, cards, flat, below_days, with_buttons, labelled], ids=lambda page: page.__name__
)
def test_every_record_has_title_date_address_and_fields_whatever_the_layout(page: Any) -> None:
    expected = [(title, day, f"https://a.test{link}", number) for title, day, link, number in ROWS]

    assert read(page()) == expected


def test_a_feed_is_a_list_of_records_too() -> None:
    items = "".join(
        f"<item><title>{title}</title><link>https://a.test{link}</link><pubDate>{day}</pubDate></item>"
        for title, day, link, _ in ROWS
    )
    kind = EntityType.model_validate(REPORT)

    found = read_records(kind, Document(f'<rss version="2.0"><channel><title>R</title>{items}</channel></rss>')).records

    assert [(record.fields["title"], record.fields["day"]) for record in found] == [row[:2] for row in ROWS]


def test_a_page_without_a_list_gives_no_record() -> None:
    assert read("<p>We publish reports from time to time. Come back later.</p>") == []


def test_each_value_is_proved_by_the_page() -> None:
    kind = EntityType.model_validate(REPORT)

    found = read_records(kind, Document(f"<body>{cards()}</body>", url="https://a.test/list")).records

    assert all(grounding.is_proof for record in found for grounding in record.evidence.values())


def test_the_type_is_declared_beside_the_sources_and_read_by_name(tmp_path: Path) -> None:
    ingest = Ingest({"INGESTION_HOME": str(tmp_path / "home"), "INGESTION_SOURCES": str(tmp_path)})
    (tmp_path / "entities").mkdir()
    (tmp_path / "entities" / "report.yaml").write_text(yaml.safe_dump(REPORT))
    page = f"<body>{table()}</body>".encode()

    result = ingest(
        "read", "-", "--platform", "catalog", "--entity", "report", "--url", "https://a.test/", "--json", stdin=page
    )

    assert result.exit_code == 0, result.output
    assert [record["title"] for record in json.loads(result.stdout)["records"]] == [row[0] for row in ROWS]


def test_a_rule_that_names_no_field_is_refused(tmp_path: Path) -> None:
    wrong = REPORT | {"repeated": {"title": "heading", "examples": {"colour": ["red"]}}}
    (tmp_path / "report.yaml").write_text(yaml.safe_dump(wrong))

    with pytest.raises(BadEntityType, match="heading"):
        entity_type("report", folder=tmp_path)


def test_the_type_of_the_documentation_reads_a_list_of_opinions(tmp_path: Path) -> None:
    text = (Path(__file__).parents[3] / "docs" / "extending.md").read_text()
    [declared] = re.findall(r"```yaml\n(# sources/entities/opinion.yaml\n.*?)```", text, re.DOTALL)
    (tmp_path / "opinion.yaml").write_text(declared)
    rows = "".join(
        f"<tr><td>03/{day}/2024<td><a href=/o/{day}.pdf>{name} v. State</a><td>{day}-77" for day, name in CASES.items()
    )
    kind = entity_type("opinion", folder=tmp_path)

    found = read_records(
        kind, Document(f"<body><table>{rows}</table></body>", url="https://court.example/list")
    ).records

    assert [(record.fields["name"], record.fields["date"], record.fields["docket"]) for record in found] == [
        (f"{name} v. State", f"2024-03-{day}", f"{day}-77") for day, name in CASES.items()
    ]


CASES = {"14": "Ames", "15": "Boyle", "18": "Cruz", "19": "Dunn"}
