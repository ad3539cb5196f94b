"""`ingest eval` and `ingest golden`."""

import json
import re
from pathlib import Path

import pytest

from ingestion_pipeline.catalogs.golden import load_truth
from ingestion_pipeline_tests.catalogs.course_pages import course_page
from ingestion_pipeline_tests.cli.conftest import Ingest


@pytest.fixture
def pages(tmp_path: Path) -> Path:
    """A folder with a page of two courses and their truth, of which one name is wrong on purpose."""
    folder = tmp_path / "pages"
    folder.mkdir()
    (folder / "a.html").write_text(course_page(101, 102))
    records = [
        {"course_id": "MATH 101", "course_name": "Numbers 101", "course_credits_max": 3},
        {"course_id": "MATH 102", "course_name": "Other numbers", "course_credits_max": 3},
    ]
    (folder / "truth.json").write_text(json.dumps({"a.html": records}))
    return folder


def test_each_field_is_scored_by_precision_recall_and_f1(ingest: Ingest, pages: Path) -> None:
    figures = ingest.json("eval", str(pages), "--truth", str(pages / "truth.json"))

    assert figures["fields"]["record"]["f1"] == 1
    assert figures["fields"]["course_credits_max"]["f1"] == 1
    assert (figures["fields"]["course_name"]["right"], figures["fields"]["course_name"]["wrong"]) == (1, 1)
    assert figures["pages"] == 1
    assert figures["cost_usd"] == "0"


@pytest.mark.parametrize(
    ("floors", "code"),
    [(("0.8",), 0), (("0.99",), 1), (("course_name=0.9",), 1), (("course_id=1", "course_name=0.5"), 0)],
)
def test_a_score_below_its_floor_ends_with_exit_code_1(
    ingest: Ingest, pages: Path, floors: tuple[str, ...], code: int
) -> None:
    stated = [part for floor in floors for part in ("--floor", floor)]

    result = ingest("eval", str(pages), "--truth", str(pages / "truth.json"), *stated)

    assert result.exit_code == code, result.output


def test_a_feed_is_scored_by_its_platforms_reader(ingest: Ingest, tmp_path: Path) -> None:
    board = {"jobs": [{"id": 7, "title": "Cook", "absolute_url": "https://a.test/7", "location": {"name": "Bonn"}}]}
    (tmp_path / "board.json").write_text(json.dumps(board))
    truth = {"board.json": [{"external_id": "7", "title": "Cook", "location": "Bonn"}]}
    (tmp_path / "truth.json").write_text(json.dumps(truth))

    figures = ingest.json("eval", str(tmp_path), "--truth", str(tmp_path / "truth.json"), "--platform", "greenhouse")

    assert figures["f1"] == 1


def test_the_truth_of_the_documentation_is_one(tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "docs" / "operating" / "accuracy.md").read_text()
    blocks = re.findall(r"```json\n(.*?)```", text, re.DOTALL)
    for number, block in enumerate(blocks):
        (tmp_path / f"{number}.json").write_text(block)

    first, second = (load_truth(tmp_path / f"{number}.json") for number in range(len(blocks)))

    assert [record["course_id"] for record in first.pages["page-1.html"].records] == ["BIO 101", "BIO 102"]
    assert (second.platform, second.pages["board.json"].url) == ("greenhouse", "https://boards.example/acme")


def test_mistakes_are_refused_by_name(ingest: Ingest, pages: Path) -> None:
    (pages / "bad.json").write_text('{"b.html": []}')

    assert "FIELD=NUMBER" in ingest.refused("eval", str(pages), "--truth", str(pages / "truth.json"), "--floor", "x")
    assert "b.html" in ingest.refused("eval", str(pages), "--truth", str(pages / "bad.json"))
    assert "no source" in ingest.refused("golden", "add", "catalog:nowhere")
    assert "no golden set" in ingest.refused("golden", "score", "nothing")


def test_golden_sets_are_listed_and_scored_against_their_floor(ingest: Ingest, pages: Path, folder: Path) -> None:
    own = folder / "golden" / "college"
    own.mkdir(parents=True)
    (own / "a.html").write_bytes((pages / "a.html").read_bytes())
    records = json.loads((pages / "truth.json").read_text())["a.html"]
    (own / "golden.json").write_text(json.dumps({"pages": {"a.html": {"records": records}}, "floor": 0.8}))

    [before] = ingest.json("golden", "list")
    [score] = ingest.json("golden", "score")
    [after] = ingest.json("golden", "list")

    assert (before["name"], before["records"], before["f1"]) == ("college", 2, None)
    assert score["f1"] == after["f1"] == 0.875
    (own / "golden.json").write_text(json.dumps({"pages": {"a.html": {"records": records}}, "floor": 0.9}))
    assert ingest("golden", "score").exit_code == 1
