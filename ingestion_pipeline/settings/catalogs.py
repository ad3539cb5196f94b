"""What holds for catalogues: how their layout is found, read, and called complete."""

from __future__ import annotations

from pydantic import Field

from ingestion_pipeline.settings.groups import HOUR, Group


class Detection(Group):
    """How the layout of a catalogue is found."""

    samples: int = Field(default=5, ge=1, le=50, description="linked pages that are looked at")
    category_levels: int = Field(default=3, ge=1, le=10, description="of lists that lead to lists")
    page_type_votes: int = Field(
        default=10, ge=1, le=51, description="answers of a model where rules cannot tell"
    )
    pagination_votes: int = Field(default=10, ge=1, le=51, description="answers of a model")
    link_votes: int = Field(default=3, ge=1, le=51, description="answers of a model")


class Extraction(Group):
    """How pages become a dataset, and when it is complete."""

    batch_size: int = Field(default=200, ge=1, le=2_000, description="pages read at a time")
    concurrency: int = Field(default=8, ge=1, le=128, description="pages that ask models at a time")
    quiet_seconds: float = Field(
        default=300, ge=0, description="nothing pending and nothing changed: complete"
    )
    stale_seconds: float = Field(
        default=4 * HOUR, gt=0, description="incomplete and nothing changed: stale"
    )
    low_confidence: float = Field(
        default=0.5, ge=0, le=1, description="below this the next rung reads the page"
    )
    asked_again: int = Field(
        default=3, ge=0, le=10, description="a model, alone for a record, about what it left open"
    )
    explore_depth: int = Field(default=8, ge=1, le=50, description="steps from the root")
    drop_share: float = Field(
        default=0.3, ge=0, le=1, description="fewer items than before by this: quarantined"
    )
    drop_floor: int = Field(default=5, ge=1, description="and at least so many items fewer")
    lost_field_share: float = Field(
        default=0.5, ge=0, le=1, description="a field that so many items lost: quarantined"
    )
    flagged_share: float = Field(
        default=0.2, ge=0, le=1, description="items with an unproved required field: quarantined"
    )
    kept_versions: int = Field(default=10, ge=1, description="of a source's datasets")
