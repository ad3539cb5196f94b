"""What chapter sites say about a series enters: listings and feeds, read by one adapter per site.

Chapters leave, one per number, each with every release that its source states. Chapter content
does not belong here, nor does the fetching of listings: adapters say what to ask and read answers.
"""

from ingestion_pipeline.series.chapter import Chapter, Release, chapters_of
from ingestion_pipeline.series.numbers import (
    canonical_number,
    chapter_number,
    missing_numbers,
    number_text,
)

__all__ = [
    "Chapter",
    "Release",
    "canonical_number",
    "chapter_number",
    "chapters_of",
    "missing_numbers",
    "number_text",
]
