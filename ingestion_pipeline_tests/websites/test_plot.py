"""The plot of visibility over time."""

from datetime import date

import pytest

from ingestion_pipeline.websites.analysis_reports import RankedDay, shown_days, visibility_picture

PNG = b"\x89PNG"


def a_day(number: int, *competitors: str) -> RankedDay:
    return RankedDay(
        day=date(2026, 3, number),
        visibility=0.1 * number,
        score=number,
        by_provider={"one": {"visibility": 0.5}} if number % 2 else {},
        competitors={name: {"visibility": 0.3} for name in competitors},
        cost_usd=None,
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Acme", "$x_{y$", "株式会社", "_hidden", "A" * 500])
def test_a_plot_is_drawn_for_any_name(name: str) -> None:
    picture = visibility_picture(name, [a_day(1, name, "Globex"), a_day(2, name)])

    assert picture.startswith(PNG)
    assert len(picture) < 300_000


@pytest.mark.slow
def test_a_plot_is_drawn_without_competitors() -> None:
    assert visibility_picture("Acme", [a_day(1)]).startswith(PNG)


def test_a_plot_without_rankings_is_refused() -> None:
    with pytest.raises(ValueError, match="no ranking"):
        visibility_picture("Acme", [])


def test_the_plot_shows_a_week_at_least() -> None:
    assert shown_days([a_day(10)]) == (date(2026, 3, 7), date(2026, 3, 13))
    assert shown_days([a_day(1), a_day(20)]) == (date(2026, 3, 1), date(2026, 3, 20))
