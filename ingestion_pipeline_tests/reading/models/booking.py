"""Entries of the ledger, made without a server."""

from __future__ import annotations

from ingestion_pipeline.reading.llm import Billing
from ingestion_pipeline.reading.llm.ledger import NewCall
from ingestion_pipeline.reading.llm.outcomes import Usage
from ingestion_pipeline_tests.reading.models.asking import BILLING


def a_call(*, output_tokens: int = 100, model: str = "cheap", billing: Billing = BILLING) -> NewCall:
    """A request of the default extraction that reserves these tokens."""
    return NewCall(
        billing=billing,
        provider="http://127.0.0.1:1/v1",
        model=model,
        format="responses",
        cache_key="0" * 64,
        prompt_version="course@1.1",
        estimate=Usage(output_tokens=output_tokens, is_estimated=True),
    )
