"""Names enter, and the answers that may hold them; where they are named leaves.

Pure throughout. What a mention is worth does not belong here.
"""

from ingestion_pipeline.websites.naming.mentions import (
    Mention,
    Mentions,
    find_mentions,
    mentions_of_all,
    rank_at,
)
from ingestion_pipeline.websites.naming.names import Names

__all__ = ["Mention", "Mentions", "Names", "find_mentions", "mentions_of_all", "rank_at"]
