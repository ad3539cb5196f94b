"""Job boards enter: answers of their APIs, feeds and pages, read by one adapter per platform.

Listings leave, each with what its board states of it, and a problem for each that cannot be read.
Fetching does not belong here: adapters say what to ask and read answers.
"""

from ingestion_pipeline.companies.listing import Listing, Remote
from ingestion_pipeline.companies.salary import Salary

__all__ = ["Listing", "Remote", "Salary"]
