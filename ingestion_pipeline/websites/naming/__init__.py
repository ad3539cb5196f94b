"""Search for the mentions of names in answers. Pure; scoring a mention is done elsewhere."""

from ingestion_pipeline.websites.naming.mentions import Mention, Mentions, find_mentions, mentions_of_all, rank_at
from ingestion_pipeline.websites.naming.names import Names

__all__ = ["Mention", "Mentions", "Names", "find_mentions", "mentions_of_all", "rank_at"]
