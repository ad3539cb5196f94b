"""A listing as it is judged: what its rows state, and nothing else."""

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
from ingestion_pipeline.companies.salary import (
    TIMES_A_YEAR,
    salary_as_dict,
    salary_in_description,
)

_LEAST_A_YEAR = 10_000  # without a period a smaller amount is for some other time


@dataclass(frozen=True, kw_only=True)
class ListedJob:
    """What a judgement looks at; `size_category` is the company's, None if nobody knows it."""

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
        """The title, for looking up words."""
        return Text.of(self.title)

    @cached_property
    def text(self) -> Text:
        """Title and description, for looking up words."""
        return Text.of(self.title, self.description)

    @cached_property
    def work_mode(self) -> Remote | None:
        """Where the work is done: as the board states it, else as title or description do."""
        if self.remote is not None:
            return self.remote
        return work_mode_in(self.title) or work_mode_in(self.description or "")

    @cached_property
    def places(self) -> tuple[str, ...]:
        """Where the job is: as the board states it, else as title or description do."""
        return self.locations or (
            *places_in_text(self.title),
            *places_in_text(self.description or ""),
        )

    @cached_property
    def pay(self) -> Mapping[str, Any] | None:
        """What it pays: as the board states it, else as the description does."""
        if self.salary or not self.description:
            return self.salary
        pay = salary_in_description(self.description)
        return salary_as_dict(pay) if pay else None

    @property
    def has_text(self) -> bool:
        """Whether there is anything beyond the title to look words up in."""
        return bool(self.description and self.description.strip())

    def age_days(self, at: datetime) -> float | None:
        """How old it is then; negative for a date that is yet to come, None if none is stated."""
        if self.posted_at is None:
            return None
        return (at - self.posted_at).total_seconds() / 86_400

    def best_salary(self, currency: str) -> Decimal | None:
        """The most it pays in a year in that currency; None if it does not say so.

        An amount without a currency is in the reader's; another currency is not compared.
        """
        stated = self.pay or {}
        if stated.get("currency") not in {None, currency}:
            return None
        amount = _decimal(stated.get("maximum")) or _decimal(stated.get("minimum"))
        if amount is None:
            return None
        period = stated.get("period")
        if period is None:
            return amount if amount >= _LEAST_A_YEAR else None
        return amount * TIMES_A_YEAR[period] if period in TIMES_A_YEAR else None


def _decimal(value: object) -> Decimal | None:
    try:
        return None if value is None else Decimal(str(value))
    except InvalidOperation:
        return None
