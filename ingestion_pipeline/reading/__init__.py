"""Bodies as they were fetched enter: bytes, with whatever their headers claim.

What a body says leaves: text, Markdown, links, feed entries, the items of a JSON or HTML list with
their dates, and a problem for each part that cannot be read. What it means does not belong here,
nor does fetching it or storing it. `models` asks language models what rules cannot read.
"""

from ingestion_pipeline.reading.evidence.grounding import Grounding, ground
from ingestion_pipeline.reading.html.cleaning import cleaned_text
from ingestion_pipeline.reading.html.markdown import to_markdown
from ingestion_pipeline.reading.structured.items import Problem, Reading
from ingestion_pipeline.reading.text.decoding import clean_text, decode
from ingestion_pipeline.reading.text.fingerprint import content_hash

__all__ = [
    "Grounding",
    "Problem",
    "Reading",
    "clean_text",
    "cleaned_text",
    "content_hash",
    "decode",
    "ground",
    "to_markdown",
]
