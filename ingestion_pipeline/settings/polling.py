"""Settings of polling: intervals, tiers, change priors, health, and the polling runs."""

from __future__ import annotations

from pydantic import Field

from ingestion_pipeline.settings.groups import DAY, HOUR, Group


class Polling(Group):
    """How a run polls the due sources."""

    shards: int = Field(
        default=2, ge=1, le=256, description="runs per tier and tick, by hash of the host, unless more are due"
    )
    most_shards: int = Field(default=16, ge=1, le=256, description="runs per tier and tick, however many are due")
    run_seconds: int = Field(
        default=60, ge=1, le=800, description="how long a run should last: so many shards are made"
    )
    aged_seconds: int = Field(
        default=2 * HOUR, ge=60, description="after so long, and again, a due poll moves up a tier"
    )
    backlog_limit: int = Field(
        default=50_000, ge=1, description="polling pauses while more readings than this wait to be ingested"
    )
    batch_size: int = Field(default=500, ge=1, le=5_000, description="sources claimed at a time")
    slice_seconds: int = Field(default=300, ge=1, le=800, description="a run claims no more after this")
    concurrency: int = Field(default=32, ge=1, le=256, description="hosts fetched from at the same time")
    jitter_share: float = Field(default=0.1, ge=0, le=0.5, description="next check moves by up to this share")
    adaptive: bool = Field(default=True, description="`auto` sources are checked when a change is expected of them")
    adaptive_gaps: float = Field(
        default=0, ge=0, le=20, description="gaps between changes that must be known before that"
    )
    budget_share: float = Field(
        default=1.0,
        gt=0,
        le=10,
        description="checks of such sources together, as a share of what their tiers would make",
    )
    shortest_share: float = Field(
        default=1 / 3, gt=0, le=1, description="no wait of theirs is below this share of HOT's"
    )
    longest_share: float = Field(
        default=2.0, ge=1, le=10, description="no wait of theirs is above this share of COLD's"
    )
    partition_limit: int = Field(
        default=25_000, ge=1, le=100_000, description="partitions of a kind; Dagster's ceiling"
    )
    reported_events: int = Field(default=100, ge=1, le=5_000, description="materializations logged per run")


class Interval(Group):
    """Seconds between two checks, by kind and tier."""

    series_hot: int = Field(default=15 * 60, ge=1, description="seconds")
    series_warm: int = Field(default=4 * HOUR, ge=1, description="seconds")
    series_cold: int = Field(default=DAY, ge=1, description="seconds")
    job_board_hot: int = Field(default=HOUR, ge=1, description="seconds")
    job_board_warm: int = Field(default=6 * HOUR, ge=1, description="seconds")
    job_board_cold: int = Field(default=DAY, ge=1, description="seconds")
    catalog_hot: int = Field(default=DAY, ge=1, description="seconds")
    catalog_warm: int = Field(default=7 * DAY, ge=1, description="seconds")
    catalog_cold: int = Field(default=30 * DAY, ge=1, description="seconds")
    website_hot: int = Field(default=DAY, ge=1, description="seconds")
    website_warm: int = Field(default=7 * DAY, ge=1, description="seconds")
    website_cold: int = Field(default=30 * DAY, ge=1, description="seconds")
    company_hot: int = Field(default=7 * DAY, ge=1, description="seconds")
    company_warm: int = Field(default=30 * DAY, ge=1, description="seconds")
    company_cold: int = Field(default=90 * DAY, ge=1, description="seconds")
    other_hot: int = Field(default=HOUR, ge=1, description="seconds, for kinds of other packages")
    other_warm: int = Field(default=6 * HOUR, ge=1, description="seconds, for kinds of other packages")
    other_cold: int = Field(default=DAY, ge=1, description="seconds, for kinds of other packages")


class Tiers(Group):
    """When an `auto` source changes its tier; age is counted from the last new record."""

    hot_readers: int = Field(default=100, ge=0, description="HOT in any case with more followers than this")


class HealthLimits(Group):
    """When a source is called degraded or late, and a daemon silent."""

    degraded_failures: int = Field(
        default=2, ge=1, description="failed polls in a row that degrade a source; one, if waiting cannot help"
    )
    late_seconds: int = Field(
        default=2 * HOUR, ge=60, description="overdue by this, or by its interval if that is shorter: late"
    )
    daemon_silent_seconds: int = Field(
        default=180, ge=60, description="without a tick of the daemon for this long it is silent"
    )
