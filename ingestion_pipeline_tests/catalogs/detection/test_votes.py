"""Votes, each counted once."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from ingestion_pipeline.catalogs.detection.detected import tally


@pytest.mark.parametrize(
    ("votes", "winner"),
    [
        ("AAB", "A"),
        ("ABB", "B"),
        ("ABAB", None),
        ("ABBA", None),
        ("AABB", None),
        ("AAABBBCCCC", None),
        ("AAAAABBBCC", None),
        ("AAAAAABBCC", "A"),
        ("A", "A"),
        ("", None),
        (["A", None, None], "A"),
        (["A", "B", None], None),
        ([None, None], None),
    ],
)
def test_more_than_half_of_the_answers_decide(votes: Sequence[str], winner: str | None) -> None:
    assert tally(list(votes)).winner == winner


def test_the_first_repeat_is_counted_once() -> None:
    """The origin counted it twice: A, A, B, B, B was a tie that A won."""
    counted = tally(list("AABBB"))

    assert counted.counts == (("B", 3), ("A", 2))
    assert counted.winner == "B"


def test_a_vote_is_told_to_people() -> None:
    assert str(tally(["A", "B", "A", None])) == "A 2, B 1 of 4"
