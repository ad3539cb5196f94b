"""Companies and job boards: adapters for job platforms, company analysis, listings and matches.

Adapters build requests and parse responses; they do not fetch anything themselves. Fetching does not belong here.
"""

from ingestion_pipeline.companies.job_listing import Listing, Remote, Salary

__all__ = ["Listing", "Remote", "Salary"]
