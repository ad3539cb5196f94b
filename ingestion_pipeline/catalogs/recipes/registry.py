"""The recipes of catalogues: written by hand in the configuration, else detected, in `recipes`.

```
WAITING ──> IN_PROGRESS ──> SUCCESS: the recipe is followed from now on
   ^             │
   └─ retried ───┴────────> ERROR, with a reason that people can read
```

Of what failed for a passing reason the next poll, or whoever starts an extraction, tries again.
A detected recipe holds for the URL and the configuration it was detected for; another URL is
another catalogue. The last good one is kept while it is looked for again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from sqlalchemy import Connection, and_, case, literal, null, or_, select, update

from ingestion_pipeline.sources import Kind, Source, SourceStatus
from ingestion_pipeline.sources.lookup import list_sources
from ingestion_pipeline.store.bulk import row_source
from ingestion_pipeline.store.inserts import insert_into
from ingestion_pipeline.store.locking import lock_rows
from ingestion_pipeline.store.tables import ACTIVE, recipes, tasks
from ingestion_pipeline.tasks.errors import ErrorClass
from ingestion_pipeline.tasks.queue import insert_tasks
from ingestion_pipeline.tasks.task import NewTask, TaskStatus

DETECT = "detect_recipe"
BY_HAND = "recipe"  # its key in a source's configuration
MESSAGE_LENGTH = 2_000


class RecipeStatus(StrEnum):
    """How far the detection of a catalogue's recipe is."""

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
    """The same as long as a detected recipe holds."""
    said = json.dumps([source.url, source.config], sort_keys=True, default=str)
    return hashlib.sha256(said.encode()).hexdigest()


def detected(connection: Connection, source_ids: Collection[str]) -> dict[str, DetectedRecipe]:
    """What is known of these sources' recipes; nothing of those that were never looked at."""
    query = select(*(recipes.c[name] for name in DetectedRecipe.__dataclass_fields__))
    rows = connection.execute(query.where(recipes.c.source_id.in_(list(source_ids)))).mappings()
    return {row["source_id"]: _known(dict(row)) for row in rows}


def _known(values: dict[str, Any]) -> DetectedRecipe:
    values["status"] = RecipeStatus(values["status"])
    return DetectedRecipe(**values)


def ready_recipes(
    connection: Connection, sources: Sequence[Source], *, now: datetime
) -> dict[str, Mapping[str, Any] | str]:
    """Each source's recipe as it is written or detected, or why there is none yet.

    What has never been looked for is looked for from now on, and what was not found for a reason
    that may have passed is looked for once more.
    """
    ready: dict[str, Mapping[str, Any] | str] = {
        one.id: one.config[BY_HAND] for one in sources if is_by_hand(one)
    }
    others = [one for one in sources if one.id not in ready]
    if others:
        ensure_detection(connection, others, now=now)
        known = detected(connection, [one.id for one in others])
        hopeful = [one for one in others if one.id in known and _may_have_passed(known[one.id])]
        if ensure_detection(connection, hopeful, now=now, again=True):
            known = detected(connection, [one.id for one in others])
        ready |= {one.id: _usable(one, known.get(one.id)) for one in others}
    return ready


def _may_have_passed(known: DetectedRecipe) -> bool:
    """Whether its detection failed at a host that was down, and not at what the page is."""
    said = (known.evidence or {}).get("class")
    return known.status is RecipeStatus.ERROR and said == ErrorClass.TRANSIENT.value


def _usable(source: Source, known: DetectedRecipe | None) -> Mapping[str, Any] | str:
    if known is not None and known.recipe and known.detected_for == fingerprint(source):
        return known.recipe
    return f"not crawled: {state_of(known)}"


def state_of(known: DetectedRecipe | None) -> str:
    """How far the detection is, in a sentence for people."""
    if known is None:
        return "its recipe was never looked for; enable it, or write config.recipe"
    said = f": {known.message}" if known.message else ""
    match known.status:
        case RecipeStatus.WAITING:
            return f"detection of its recipe is waiting{said}"
        case RecipeStatus.IN_PROGRESS:
            return f"detection of its recipe is in progress{said}"
        case RecipeStatus.SUCCESS:
            return f"its recipe was detected{said}"
        case RecipeStatus.ERROR:
            return f"detection of its recipe failed{said}"


def recipe_facts(connection: Connection, source: Source) -> dict[str, object]:
    """A catalogue's recipe, where it comes from, and how far its detection is; else nothing."""
    if source.kind is not Kind.CATALOG:
        return {}
    if is_by_hand(source):
        return {"recipe_status": "by hand", "recipe": source.config["recipe"]}
    known = detected(connection, [source.id]).get(source.id)
    return {
        "recipe_status": known.status.value if known else None,
        "recipe_message": known.message if known else state_of(known),
        "recipe": known.recipe if known else None,
    }


def ensure_detection(
    connection: Connection, sources: Iterable[Source], *, now: datetime, again: bool = False
) -> list[str]:
    """A recipe is looked for wherever one is missing, or `again`; the ids of those sources.

    Not where a person wrote one, nor for a source that is disabled.
    """
    wanted = [one for one in sources if _may_be_detected(one)]
    known = detected(connection, [one.id for one in wanted])
    chosen = [
        one
        for one in wanted
        if again or one.id not in known or known[one.id].detected_for != fingerprint(one)
    ]
    if chosen:
        _wait(connection, chosen, now=now)
        insert_tasks(connection, [_task(one, now=now) for one in chosen], now=now)
    return [one.id for one in chosen]


def ensure_all(connection: Connection, *, now: datetime) -> list[str]:
    """The same for every catalogue there is."""
    return ensure_detection(connection, list_sources(connection, kind=Kind.CATALOG), now=now)


def _may_be_detected(source: Source) -> bool:
    is_watched = source.status is not SourceStatus.DISABLED
    return source.kind is Kind.CATALOG and is_watched and not is_by_hand(source)


def _wait(connection: Connection, chosen: Sequence[Source], *, now: datetime) -> None:
    """Their rows wait; a recipe for another URL or configuration is forgotten."""
    columns = {name: recipes.c[name].type for name in ("source_id", "detected_for")}
    rows = [(one.id, fingerprint(one)) for one in chosen]
    given = row_source(connection, columns, rows, "given")
    moment = literal(now, recipes.c.created_at.type)
    waiting = literal(RecipeStatus.WAITING.value)
    statement = insert_into(connection, recipes).from_select(
        ["source_id", "detected_for", "status", "created_at", "updated_at"],
        # SQLite takes the ON of a conflict for that of a join, unless a condition stands between.
        select(given.c.source_id, given.c.detected_for, waiting, moment, moment)
        .where(given.c.source_id.is_not(None))
        .order_by(given.c.source_id),
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


def _task(source: Source, *, now: datetime) -> NewTask:
    return NewTask(
        kind=DETECT,
        dedupe_key=source.id,
        not_before=now,
        priority=source.tier.priority,
        shard=source.shard,
        source_id=source.id,
        url=source.url,
    )


def waits(connection: Connection, *, now: datetime) -> bool:
    """Whether a detection can be claimed: one indexed question."""
    is_claimable = or_(
        tasks.c.status == TaskStatus.PENDING.value,
        and_(tasks.c.status == TaskStatus.PROCESSING.value, tasks.c.lease_until < now),
    )
    query = select(tasks.c.id).where(
        ACTIVE, tasks.c.kind == DETECT, tasks.c.not_before <= now, is_claimable
    )
    return connection.execute(query.limit(1)).first() is not None


def mark(
    connection: Connection,
    source_ids: Collection[str],
    status: RecipeStatus,
    *,
    now: datetime,
    **values: Any,  # noqa: ANN401 - columns of the row
) -> None:
    """The rows of these sources say so."""
    lock_rows(connection, recipes.c.source_id, source_ids)
    connection.execute(
        update(recipes)
        .where(recipes.c.source_id.in_(list(source_ids)))
        .values(status=status.value, updated_at=now, **values)
    )
