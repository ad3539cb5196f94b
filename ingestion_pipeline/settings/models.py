"""Settings of language models: limits of calls, prices and budgets."""

from __future__ import annotations

import re
from decimal import Decimal

from pydantic import Field, field_validator

from ingestion_pipeline.settings.groups import HOUR, Group

# Dollars, or `none` for no limit; 0 allows nothing.
LIMIT = r"^(none|[0-9]{1,9}(\.[0-9]{1,9})?)$"
_AMOUNT = r"[0-9]{1,6}(?:\.[0-9]{1,6})?"
_PRICE = re.compile(rf"([^=]*[^=\s])\s*=\s*({_AMOUNT})\s*/\s*({_AMOUNT})\s*/\s*({_AMOUNT})")


class Price(Group):
    """Dollars per million tokens; cached input is input that the provider had read before."""

    input_usd: Decimal
    cached_input_usd: Decimal
    output_usd: Decimal


class Models(Group):
    """Limits of model calls, and what they may cost."""

    prices: str = Field(
        # Published list prices of 2025; a provider may change its own at any time.
        default=(
            "gpt-5=1.25/0.125/10, gpt-5-mini=0.25/0.025/2, gpt-5-nano=0.05/0.005/0.4,"
            " gpt-4.1=2/0.5/8, gpt-4.1-mini=0.4/0.1/1.6, gpt-4.1-nano=0.1/0.025/0.4,"
            " gpt-4o=2.5/1.25/10, gpt-4o-mini=0.15/0.075/0.6"
        ),
        description="model=input/cached input/output, in dollars per million tokens, by comma",
    )
    source_day_usd: str = Field(
        default="none", pattern=LIMIT, description="dollars for one source in a day (UTC), or none"
    )
    deadline_seconds: float = Field(
        default=90,
        gt=0,
        le=2_000,
        description="for one question, retries included; three quarters of a lease at the most",
    )
    max_attempts: int = Field(default=4, ge=1, le=10, description="of one request to a model, first one included")
    backoff_base_seconds: float = Field(
        default=0.5, gt=0, description="first delay between two attempts; doubles each time"
    )
    max_output_tokens: int = Field(default=8_192, ge=16, le=1_000_000, description="an answer is cut there")
    unconfigured_wait_seconds: int = Field(default=HOUR, ge=1, description="what needs a model waits this long for one")

    @field_validator("prices")
    @classmethod
    def _each_is_a_price(cls, prices: str) -> str:
        price_table(prices)
        return prices


def price_table(text: str) -> dict[str, Price]:
    """Return each model with its price; ValueError names the entry that is none."""
    entries = [part.strip() for part in text.split(",")]
    return dict(_price(entry) for entry in entries if entry)


def limit_usd(text: str) -> Decimal | None:
    """Return the amount of a limit, None for no limit."""
    return None if text == "none" else Decimal(text)


def _price(entry: str) -> tuple[str, Price]:
    match = _PRICE.fullmatch(entry)
    if match is None:
        raise ValueError(f"{entry!r} is not model=input/cached input/output, such as m=2/0.5/8")
    model, *amounts = match.groups()
    paid = [Decimal(amount) for amount in amounts]
    return model, Price(input_usd=paid[0], cached_input_usd=paid[1], output_usd=paid[2])
