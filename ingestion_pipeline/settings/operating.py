"""When something is worth an operator's look."""

from __future__ import annotations

from pydantic import Field

from ingestion_pipeline.settings.groups import DAY, HOUR, Group


class Health(Group):
    """When a source is called degraded or late, and a daemon silent."""

    degraded_failures: int = Field(
        default=2,
        ge=1,
        description="failed polls in a row that degrade a source; one, if waiting cannot help",
    )
    flapping_seconds: int = Field(
        default=DAY,
        ge=0,
        description="who recovered this lately is degraded by twice as many failures",
    )
    late_seconds: int = Field(
        default=2 * HOUR,
        ge=60,
        description="overdue by this, or by its interval if that is shorter: late",
    )
    daemon_silent_seconds: int = Field(
        default=180, ge=60, description="without a tick of the daemon for this long it is silent"
    )
    shown: int = Field(
        default=50, ge=1, le=1_000, description="sources in the table of source_health, worst first"
    )
