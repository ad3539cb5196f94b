"""Chapters of serial publications, read from chapter sites and feeds.

One adapter per platform says what to request and parses the responses. The result is one chapter
per number, with every release its source lists. Chapter content is never stored, and this
package does not fetch anything itself.
Fetching does not belong here.
"""

from ingestion_pipeline.series.chapter_labels import chapter_number

__all__ = ["chapter_number"]
