"""The registry of recipes: written by hand in the configuration, else detected, in `recipes`.

```
WAITING ──> IN_PROGRESS ──> SUCCESS: the recipe is used from now on
   ^             │
   └─ retried ───┴────────> ERROR, with a reason that people can read
```

After a transient failure the next poll, or whoever starts an extraction, tries again. A detected
recipe is valid for the URL and the configuration it was detected for; another URL is another
catalogue. The last good one is kept while detection runs again.
"""

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import Connection, case, literal, null, select, update

from ingestion_pipeline.sources import Kind, Source, SourceStatus
from ingestion_pipeline.store.statements import insert_into, lock_rows, row_source
from ingestion_pipeline.store.tables import recipes
from ingestion_pipeline.tasks.errors import ErrorClass
from ingestion_pipeline.tasks.queue import insert_tasks
from ingestion_pipeline.tasks.task import NewTask

DETECT = "detect_recipe"
BY_HAND = "recipe"  # its key in a source's configuration
MESSAGE_LENGTH = 2_000


class RecipeStatus(StrEnum):
    """The state of the detection of a catalogue's recipe."""

    WAITING = "WAITING"
    IN_PROGRESS = "IN_PROGRESS"
    SUCCESS = "SUCCESS"
    ERROR = "ERROR"


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectedRecipe:
    """A row of `recipes`."""

    source_id: str
    status: RecipeStatus
    recipe: Mapping[str, Any] | None
    message: str | None
    evidence: Mapping[str, Any] | None
    detected_for: str | None
    updated_at: datetime


def is_by_hand(source: Source) -> bool:
    """Whether a person wrote the recipe; then nothing is detected."""
    return source.config.get(BY_HAND) is not None


def fingerprint(source: Source) -> str:
    """Return a hash of the URL and configuration that a detected recipe is valid for."""
    text = json.dumps([source.url, source.config], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def detected_recipes(connection: Connection, source_ids: Collection[str]) -> dict[str, DetectedRecipe]:
    """Return the recipe rows of these sources; none for those without a detection."""
    query = select(*(recipes.c[name] for name in DetectedRecipe.__dataclass_fields__))
    rows = connection.execute(query.where(recipes.c.source_id.in_(list(source_ids)))).mappings()
    detections: dict[str, DetectedRecipe] = {}
    for row in rows:
        values: dict[str, Any] = {**row, "status": RecipeStatus(row["status"])}
        detections[row["source_id"]] = DetectedRecipe(**values)
    return detections


def ready_recipes(
    connection: Connection, sources: Sequence[Source], *, now: datetime
) -> dict[str, Mapping[str, Any] | str]:
    """Return each source's recipe, or the reason why there is none yet.

    Detection is queued for sources without a recipe, and again where it failed for a transient reason.
    """
    ready: dict[str, Mapping[str, Any] | str] = {
        source.id: source.config[BY_HAND] for source in sources if is_by_hand(source)
    }
    others = [source for source in sources if source.id not in ready]
    if others:
        ensure_detection(connection, others, now=now)
        detections = detected_recipes(connection, [source.id for source in others])
        retryable = [
            source
            for source in others
            if (recipe := detections.get(source.id))
            and recipe.status is RecipeStatus.ERROR
            and (recipe.evidence or {}).get("class") == ErrorClass.TRANSIENT.value  # such as a host that was down
        ]
        if ensure_detection(connection, retryable, now=now, again=True):
            detections = detected_recipes(connection, [source.id for source in others])
        for source in others:
            detected = detections.get(source.id)
            is_usable = detected is not None and detected.detected_for == fingerprint(source)
            recipe = detected.recipe if detected is not None and is_usable else None
            ready[source.id] = recipe or f"not crawled: {state_of(detected)}"
    return ready


_DETECTION_STATES = {
    RecipeStatus.WAITING: "detection of its recipe is waiting",
    RecipeStatus.IN_PROGRESS: "detection of its recipe is in progress",
    RecipeStatus.SUCCESS: "its recipe was detected",
    RecipeStatus.ERROR: "detection of its recipe failed",
}


def state_of(recipe: DetectedRecipe | None) -> str:
    """Describe the state of the detection in a sentence for people."""
    if recipe is None:
        return "detection of its recipe never ran; enable the source, or write config.recipe"
    return _DETECTION_STATES[recipe.status] + (f": {recipe.message}" if recipe.message else "")


def recipe_facts(connection: Connection, source: Source) -> dict[str, object]:
    """Return a catalogue's recipe, its origin and its detection's state."""
    if is_by_hand(source):
        return {"recipe_status": "by hand", "recipe": source.config["recipe"]}
    recipe = detected_recipes(connection, [source.id]).get(source.id)
    return {
        "recipe_status": recipe.status.value if recipe else None,
        "recipe_message": recipe.message if recipe else state_of(recipe),
        "recipe": recipe.recipe if recipe else None,
    }


def ensure_detection(
    connection: Connection, sources: Iterable[Source], *, now: datetime, again: bool = False, retries: bool = False
) -> list[str]:
    """Queue a detection wherever a recipe is missing, or `again`; return the ids of those sources.

    With `retries` also where a detection has failed. Sources that are disabled or have a recipe
    written by hand are skipped.
    """
    candidates = [
        source
        for source in sources
        if source.kind is Kind.CATALOG and source.status is not SourceStatus.DISABLED and not is_by_hand(source)
    ]
    detections = detected_recipes(connection, [source.id for source in candidates])
    chosen = [
        source
        for source in candidates
        if again
        or source.id not in detections
        or detections[source.id].detected_for != fingerprint(source)
        or (retries and detections[source.id].status is RecipeStatus.ERROR)
    ]
    if chosen:
        _wait(connection, chosen, now=now)
        tasks_ = [
            NewTask(
                kind=DETECT,
                dedupe_key=source.id,
                not_before=now,
                priority=source.tier.priority,
                shard=source.shard,
                source_id=source.id,
                url=source.url,
            )
            for source in chosen
        ]
        insert_tasks(connection, tasks_, now=now)
    return [source.id for source in chosen]


def _wait(connection: Connection, chosen: Sequence[Source], *, now: datetime) -> None:
    """Set their rows to waiting; drop a recipe detected for another URL or configuration."""
    columns = {name: recipes.c[name].type for name in ("source_id", "detected_for")}
    rows = [(source.id, fingerprint(source)) for source in chosen]
    new_rows = row_source(connection, columns, rows, "given")
    moment = literal(now, recipes.c.created_at.type)
    waiting = literal(RecipeStatus.WAITING.value)
    statement = insert_into(connection, recipes).from_select(
        ["source_id", "detected_for", "status", "created_at", "updated_at"],
        # SQLite parses ON CONFLICT as the ON of a join unless a WHERE stands between.
        select(new_rows.c.source_id, new_rows.c.detected_for, waiting, moment, moment)
        .where(new_rows.c.source_id.is_not(None))
        .order_by(new_rows.c.source_id),
    )
    new = statement.excluded.detected_for
    is_same = recipes.c.detected_for == new
    connection.execute(
        statement.on_conflict_do_update(
            index_elements=["source_id"],
            set_={
                "status": RecipeStatus.WAITING.value,
                "recipe": case((is_same, recipes.c.recipe), else_=null()),
                "message": null(),
                "detected_for": new,
                "notified_at": null(),
                "updated_at": now,
            },
        )
    )


def mark_recipes(
    connection: Connection,
    source_ids: Collection[str],
    status: RecipeStatus,
    *,
    now: datetime,
    **values: Any,  # noqa: ANN401 - columns of the row
) -> None:
    """Update the rows of these sources with the status and the values."""
    lock_rows(connection, recipes.c.source_id, source_ids)
    connection.execute(
        update(recipes)
        .where(recipes.c.source_id.in_(list(source_ids)))
        .values(status=status.value, updated_at=now, **values)
    )
