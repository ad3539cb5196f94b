"""Bytes, politely: a `Request` enters, and its page leaves as `Fetched` or as `Unchanged`.

All else that may happen leaves as a classified `WorkError`; bodies stay in the `ContentStore`.
What a page means, and when it is due, does not belong here: reading and sources know that.
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
