"""Parse fetched bodies: bytes with their claimed headers in, text and records out.

Results are text, Markdown, links, feed entries, the items of a JSON or HTML list with their dates,
and a problem for each part that cannot be read. What records mean does not belong here, nor does
fetching or storing them. `llm` calls language models for what rules cannot read.
"""

from ingestion_pipeline.reading.evidence.grounding import Grounding, ground
from ingestion_pipeline.reading.html.cleaning import cleaned_text
from ingestion_pipeline.reading.html.markdown import to_markdown
from ingestion_pipeline.reading.structured.items import ParsedFeed, Problem
from ingestion_pipeline.reading.text.plain_text import clean_text, content_hash, decode

__all__ = [
    "Grounding",
    "ParsedFeed",
    "Problem",
    "clean_text",
    "cleaned_text",
    "content_hash",
    "decode",
    "ground",
    "to_markdown",
]
