"""Scores of records by field."""

from decimal import Decimal

from ingestion_pipeline.reading.scoring import Scores, score_records


def scored(expected: list[dict[str, object]], found: list[dict[str, object]]) -> Scores:
    scores: Scores = {}
    score_records(scores, expected, found, key=("id",))
    return scores


def test_equal_records_score_one_whatever_their_case_and_layout() -> None:
    scores = scored([{"id": "A 1", "n": 3}], [{"id": "a  1", "n": Decimal("3.00"), "more": "x"}])

    assert {name: score.f1 for name, score in scores.items()} == {"record": 1, "id": 1, "n": 1}


def test_a_wrong_value_costs_precision_and_recall_of_its_field_alone() -> None:
    scores = scored(
        [{"id": "1", "name": "Life"}, {"id": "2", "name": "Cells"}],
        [{"id": "1", "name": "Life"}] * 1 + [{"id": "2", "name": "Cell"}],
    )

    assert scores["id"].f1 == 1
    assert (scores["name"].precision, scores["name"].recall) == (0.5, 0.5)


def test_missing_records_cost_recall_and_invented_ones_precision() -> None:
    scores = scored([{"id": "1"}, {"id": "2"}], [{"id": "1"}, {"id": "3"}, {"id": "4"}])

    assert scores["record"].recall == 0.5
    assert scores["record"].precision == 1 / 3


def test_a_field_that_is_known_to_be_absent_must_not_be_read() -> None:
    scores = scored([{"id": "1", "note": None}], [{"id": "1", "note": "x"}])

    assert scores["note"].precision == 0
    assert scores["note"].recall == 1
