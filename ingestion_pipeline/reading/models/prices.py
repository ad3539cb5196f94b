"""What a call costs: before it an estimate that is rather too high, after it what was used."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from decimal import ROUND_HALF_UP, Decimal

from ingestion_pipeline.reading.models.outcomes import Usage
from ingestion_pipeline.settings import Price

log = logging.getLogger(__name__)

NANO = Decimal("0.000000001")  # the cheapest cached token costs five of these
MILLION = 1_000_000
BYTES_PER_TOKEN = 3  # English has four and more, other scripts come near three
_DATED = re.compile(r"-20[0-9]{2}-?[0-9]{2}-?[0-9]{2}$")

_warned: set[str] = set()


def estimated_usage(*, input_bytes: int, output_tokens: int) -> Usage:
    """What a call of this size takes, counted without a tokenizer; rather too much."""
    tokens = -(-input_bytes // BYTES_PER_TOKEN)
    return Usage(input_tokens=tokens, output_tokens=output_tokens, is_estimated=True)


def known_price(model: str, prices: Mapping[str, Price]) -> Price | None:
    """The model's price, that of a dated release by the name before its date."""
    return prices.get(model) or prices.get(_DATED.sub("", model))


def price_of(model: str, prices: Mapping[str, Price]) -> Price | None:
    """The model's price; None if there is none, with one warning."""
    found = known_price(model, prices)
    if found is None and model not in _warned:
        _warned.add(model)
        log.warning(
            "no price is known for model %s: its tokens are counted, its cost is not, and no budget"
            " holds it; `ingest settings set models.prices` with %s=input/cached input/output",
            model,
            model,
        )
    return found


def cost_usd(usage: Usage, price: Price) -> Decimal:
    """Dollars for the tokens, to the billionth."""
    cached = min(usage.cached_input_tokens, usage.input_tokens)
    total = (
        (usage.input_tokens - cached) * price.input_usd
        + cached * price.cached_input_usd
        + usage.output_tokens * price.output_usd
    )
    return (total / MILLION).quantize(NANO, ROUND_HALF_UP)
