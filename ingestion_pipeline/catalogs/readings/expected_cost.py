"""What the next extraction of a catalogue may cost, told by the pages of the last one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sqlalchemy import Connection, select

from ingestion_pipeline.catalogs.crawl.reporting import crawl_facts
from ingestion_pipeline.catalogs.entities.declared import EntityConfig, declared
from ingestion_pipeline.catalogs.entities.ladder import COURSE, has_rules
from ingestion_pipeline.catalogs.entities.predicting import cost_with_models, predicted_cost
from ingestion_pipeline.catalogs.readings.learned import learned_facts
from ingestion_pipeline.catalogs.recipes.recipe import PageType
from ingestion_pipeline.pages.content import ContentStore
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.sources import Kind, Source
from ingestion_pipeline.store.tables import extractions, pages, snapshots
from ingestion_pipeline.work.errors import WorkError

NO_MODEL = "no model configured (OPENAI_API_KEY or OPENAI_BASE_URL)"
SAMPLED = 25  # texts that are measured; of the others only the size of the body is known


class DetailPage(NamedTuple):
    """A page of records: the size of its body, and the object that is its text."""

    size_bytes: int
    text_hash: str | None


def catalog_facts(connection: Connection, source: Source, settings: Settings) -> dict[str, object]:
    """How far the source's last extraction is, what was learned, and what the next may cost."""
    facts = crawl_facts(connection, source.id) | learned_facts(connection, source.id)
    return facts | cost_facts(connection, source, settings)


def cost_facts(connection: Connection, source: Source, settings: Settings) -> dict[str, object]:
    """What reading every page of the last extraction anew would cost at most, for people to read.

    Nothing for what is no catalogue. Unchanged pages and answers that are kept cost nothing; what
    there will be new is not known.
    """
    if source.kind is not Kind.CATALOG:
        return {}
    try:
        wanted = declared(source.config, settings)
    except ValueError as error:
        return {"predicted_cost": f"not known: {error}"}
    content = ContentStore(settings.home / "content")
    sizes = text_sizes(_last_pages(connection, source.id), content)
    if not sizes:
        return {"predicted_cost": "not known before pages were visited"}
    if not settings.has_model and not could_tell(wanted):
        found = cost_with_models(wanted.kind, sizes, settings)
        said = f"once there is a model: {found}, for {len(sizes)} pages; {NO_MODEL}"
        return {"predicted_cost": said}
    found = predicted_cost(wanted.kind, sizes, settings)
    said = f"{found}, for {len(sizes)} pages"
    if found.calls and has_rules(wanted.kind, wanted.selectors):
        said += "; a page that rules read, or that is unchanged, costs nothing"
    return {"predicted_cost": said}


def could_tell(wanted: EntityConfig) -> bool:
    """Whether rules may have the last word where no model is: else its pages wait for one."""
    return wanted.kind.name == COURSE or wanted.selectors is not None


def text_sizes(rows: Sequence[DetailPage], content: ContentStore) -> list[int]:
    """Bytes of each page's cleaned text: of some measured, of the others by their share."""
    step = max(1, len(rows) // SAMPLED)
    measured = [
        (row.size_bytes, size)
        for row in rows[::step]
        if row.size_bytes and (size := _text_size(row.text_hash, content)) is not None
    ]
    bodies = sum(body for body, _ in measured)
    share = sum(size for _, size in measured) / bodies if bodies else 1.0
    return [round(row.size_bytes * share) for row in rows]


_BY_MODELS = (PageType.DETAIL, PageType.EXPLORATORY)  # an API's answer needs none


def _last_pages(connection: Connection, source_id: str) -> list[DetailPage]:
    last = (
        select(extractions.c.id)
        .where(extractions.c.source_id == source_id)
        .order_by(extractions.c.id.desc())
        .limit(1)
        .scalar_subquery()
    )
    query = (
        select(snapshots.c.size_bytes, snapshots.c.text_hash)
        .join(pages, pages.c.snapshot_id == snapshots.c.id)
        .where(pages.c.extraction_id == last, pages.c.page_type.in_(_BY_MODELS))
        .order_by(pages.c.id)
    )
    return [DetailPage(*row) for row in connection.execute(query)]


def _text_size(text_hash: str | None, content: ContentStore) -> int | None:
    if text_hash is None:
        return None
    try:
        return len(content.get(text_hash))
    except WorkError:  # lost on disk: others tell as much
        return None
