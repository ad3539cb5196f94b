"""Names enter, and the answers that may hold them; where they are named leaves.

Pure throughout. What a mention is worth does not belong here.
"""

from ingestion_pipeline.websites.naming.mentions import Mention, Mentions, find_mentions, rank_at
from ingestion_pipeline.websites.naming.names import Names

__all__ = ["Mention", "Mentions", "Names", "find_mentions", "rank_at"]
