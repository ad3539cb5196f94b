"""Sources: their declarations, rows, poll tasks, scheduling and health.

Definitions come from YAML files, the CLI and the Launchpad; rows with their poll tasks result. How
a source is fetched and what its pages mean does not belong here.
"""

from ingestion_pipeline.sources.platforms import Platform, recognize_platform
from ingestion_pipeline.sources.source import Definition, Kind, Source, SourceStatus, Tier

__all__ = ["Definition", "Kind", "Platform", "Source", "SourceStatus", "Tier", "recognize_platform"]
