"""Polite fetching: a `Request` goes in, a `Fetched` page or `Unchanged` comes out.

Every failure is a classified `WorkError`; bodies are kept in the `ContentStore`. What a page means
and when it is due does not belong here: `reading` and `sources` know that.
"""

from ingestion_pipeline.pages.content.store import ContentStore
from ingestion_pipeline.pages.http.fetcher import FetchLimits, HttpFetcher
from ingestion_pipeline.pages.http.guard import Endpoint, Guard
from ingestion_pipeline.pages.http.request import Answer, Fetched, Request, Unchanged
from ingestion_pipeline.pages.politeness.robots import robots_allows
from ingestion_pipeline.urls import canonical_url, is_refused_address

__all__ = [
    "Answer",
    "ContentStore",
    "Endpoint",
    "FetchLimits",
    "Fetched",
    "Guard",
    "HttpFetcher",
    "Request",
    "Unchanged",
    "canonical_url",
    "is_refused_address",
    "robots_allows",
]
