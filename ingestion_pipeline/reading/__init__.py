"""Bodies as they were fetched enter: bytes, with whatever their headers claim.

What a body says leaves: text, feed entries, the items of a JSON or HTML list with their dates and
links, and a problem for each part that cannot be read. What it means does not belong here, nor does
fetching it or storing it.
"""

from ingestion_pipeline.reading.decode import clean_text, decode
from ingestion_pipeline.reading.reading import Problem, Reading

__all__ = ["Problem", "Reading", "clean_text", "decode"]
