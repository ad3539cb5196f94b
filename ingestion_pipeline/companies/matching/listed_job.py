"""A listing as the evaluation sees it: only what its rows state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal, InvalidOperation
from functools import cached_property
from typing import Any

from ingestion_pipeline.companies.listing import Remote
from ingestion_pipeline.companies.matching.locations import places_in_text, work_mode_in
from ingestion_pipeline.companies.matching.terms import Text
from ingestion_pipeline.companies.salary import TIMES_A_YEAR, salary_as_dict, salary_in_description

_MIN_YEARLY_PAY = 10_000  # without a period a smaller amount is not per year


@dataclass(frozen=True, kw_only=True)
class ListedJob:
    """The input of an evaluation; `size_category` is the company's, None if unknown."""

    title: str
    url: str | None = None
    company: str | None = None
    locations: tuple[str, ...] = ()
    remote: Remote | None = None
    description: str | None = None
    employment_type: str | None = None
    salary: Mapping[str, Any] | None = None
    posted_at: datetime | None = None
    valid_until: datetime | None = None
    size_category: str | None = None

    @cached_property
    def title_text(self) -> Text:
        """Return the title, prepared for term lookup."""
        return Text.of(self.title)

    @cached_property
    def text(self) -> Text:
        """Return title and description, prepared for term lookup."""
        return Text.of(self.title, self.description)

    @cached_property
    def work_mode(self) -> Remote | None:
        """Return the work mode as the board states it, else as title or description do."""
        if self.remote is not None:
            return self.remote
        return work_mode_in(self.title) or work_mode_in(self.description or "")

    @cached_property
    def places(self) -> tuple[str, ...]:
        """Return the job's places as the board states them, else as title or description do."""
        return self.locations or (*places_in_text(self.title), *places_in_text(self.description or ""))

    @cached_property
    def pay(self) -> Mapping[str, Any] | None:
        """Return the pay as the board states it, else as the description does."""
        if self.salary or not self.description:
            return self.salary
        pay = salary_in_description(self.description)
        return salary_as_dict(pay) if pay else None

    @property
    def has_text(self) -> bool:
        """Return whether there is a description to look terms up in."""
        return bool(self.description and self.description.strip())

    def age_days(self, at: datetime) -> float | None:
        """Return the age at that time; negative for a future date, None if no date is stated."""
        if self.posted_at is None:
            return None
        return (at - self.posted_at).total_seconds() / 86_400

    def best_salary(self, currency: str) -> Decimal | None:
        """Return the most it pays in a year in that currency; None if it is not stated.

        An amount without a currency is taken to be in this one; other currencies are not compared.
        """
        stated = self.pay or {}
        if stated.get("currency") not in {None, currency}:
            return None
        amount = _decimal(stated.get("maximum")) or _decimal(stated.get("minimum"))
        if amount is None:
            return None
        period = stated.get("period")
        if period is None:
            return amount if amount >= _MIN_YEARLY_PAY else None
        return amount * TIMES_A_YEAR[period] if period in TIMES_A_YEAR else None


def _decimal(value: object) -> Decimal | None:
    try:
        return None if value is None else Decimal(str(value))
    except InvalidOperation:
        return None
