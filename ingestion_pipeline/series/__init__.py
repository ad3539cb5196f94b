"""Chapters of serial publications, read from chapter sites and feeds.

One adapter per platform says what to request and parses the responses. The result is one chapter
per number, with every release its source lists. Chapter content is never stored, and this
package does not fetch anything itself.
Fetching does not belong here.
"""

from ingestion_pipeline.series.chapter import Chapter, Release, chapters_of
from ingestion_pipeline.series.numbers import canonical_number, chapter_number, missing_numbers, number_text

__all__ = ["Chapter", "Release", "canonical_number", "chapter_number", "chapters_of", "missing_numbers", "number_text"]
