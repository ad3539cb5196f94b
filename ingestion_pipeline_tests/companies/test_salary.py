"""Salaries in text and in fields."""

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingestion_pipeline.companies import Salary
from ingestion_pipeline.companies.job_listing import salary_in, stated_salary


@pytest.mark.parametrize(
    ("text", "low", "high", "currency", "period"),
    [
        ("$151K \u2013 $231K • Offers Equity", 151_000, 231_000, "USD", None),
        ("$120-150k", 120_000, 150_000, "USD", None),
        ("120,000 - 150,000 USD per year", 120_000, 150_000, "USD", "year"),
        ("€60.000 - €75.000", 60_000, 75_000, "EUR", None),
        ("60.000 € pro Jahr", 60_000, None, "EUR", "year"),
        ("CHF 80'000 \u2013 90'000 p.a.", 80_000, 90_000, "CHF", "year"),
        ("CA$90,000—CA$120,000", 90_000, 120_000, "CAD", None),
        ("50 000 kr per month", 50_000, None, None, "month"),
        ("$65.50 - $85/hr", "65.5", 85, "USD", "hour"),
        ("$1.2m", 1_200_000, None, "USD", None),
        ("Up to $90k plus bonus", None, 90_000, "USD", None),
        ("£45k", 45_000, None, "GBP", None),
        ("$150,000 to $120,000", 120_000, 150_000, "USD", None),
        ("100000", 100_000, None, None, None),
        ("$100,000 a year, 401k matching", 100_000, None, "USD", "year"),
        ("$95,000 and a stock package", 95_000, None, "USD", None),
    ],
)
def test_a_salary_is_read_with_its_currency_and_period(
    text: str, low: str | int | None, high: int | None, currency: str | None, period: str | None
) -> None:
    assert salary_in(text) == Salary(
        minimum=None if low is None else Decimal(low),
        maximum=None if high is None else Decimal(high),
        currency=currency,
        period=period,
    )


@pytest.mark.parametrize("text", ["", "Competitive", "401k match", "10% bonus", "5 years", "k", "-"])
def test_text_without_a_salary_gives_none(text: str) -> None:
    assert salary_in(text) is None


@pytest.mark.parametrize("amount", ["", "0", "-5", "NaN", "Infinity", "1e99", "many", "9" * 5_000])
def test_a_field_that_is_not_an_amount_gives_none(amount: str) -> None:
    assert stated_salary(amount, None, currency="EUR", period="year") is None


@given(st.text(max_size=80) | st.text("0123456789.,kKmM$€- '", max_size=40))
def test_any_text_gives_a_positive_salary_or_none(text: str) -> None:
    salary = salary_in(text)

    assert salary is None or (salary.minimum or salary.maximum or 0) > 0
