"""Evaluation on saved pages with their true records, and golden sets: pages of accepted rows that must stay right.

A golden set is a folder beside the source files, `golden/NAME`: the stored bodies of pages and `golden.json` with the
records that were accepted from them. It is scored by rules, or as a run would read its pages, models included.
"""

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import groupby
from pathlib import Path
from typing import Any

from pydantic import Field
from sqlalchemy import Connection, select

from ingestion_pipeline.catalogs.extraction.entity_type import BadEntityType, UnknownEntityType
from ingestion_pipeline.catalogs.extraction.pipeline import NoRules, read_records
from ingestion_pipeline.catalogs.extraction.record import MODEL_METHODS, PageContent
from ingestion_pipeline.catalogs.extraction.source_selectors import BadSelectors, EntityConfig, load_entity_config
from ingestion_pipeline.catalogs.states import DatasetStatus
from ingestion_pipeline.pages.content.store import ContentStore
from ingestion_pipeline.reading.html.document import Document
from ingestion_pipeline.reading.scoring import Scores, score_records
from ingestion_pipeline.settings import Settings
from ingestion_pipeline.sources.declarations import FileModel, as_mapping, validated
from ingestion_pipeline.sources.status import Finding
from ingestion_pipeline.store.tables import data_items, datasets, pages, snapshots, sources
from ingestion_pipeline.tasks.errors import WorkError

FOLDER, TRUTH = "golden", "golden.json"
DEFAULT_FLOOR = 0.95
LENGTH_OF_NAMES = 16


class BadTruth(ValueError):
    """Error: a file of true records that cannot be used; the message names the file and the problem."""


class TruePage(FileModel):
    """A saved page's address and the records on it; a field that a record does not name is not scored."""

    url: str = ""
    content_type: str | None = None
    records: tuple[Mapping[str, Any], ...] = ()


class Scored(FileModel):
    """The last score of a golden set, and the hash of the reader, prompts and models that it is of."""

    reader: str
    f1: float


class Truth(FileModel):
    """The true records of pages, by the names of their files, and how the pages are read."""

    pages: Mapping[str, TruePage]
    source: str | None = None
    platform: str = "catalog"
    entity: str | None = None
    config: Mapping[str, Any] = {}
    key: tuple[str, ...] = ()
    floor: float = Field(default=DEFAULT_FLOOR, ge=0, le=1)
    uses_model: bool = False
    scored: Scored | None = None


@dataclass(slots=True, kw_only=True)
class Evaluation:
    """The scores of fields over pages, with the time and money that reading them took; failures by file."""

    scores: Scores = field(default_factory=Scores)
    pages: int = 0
    seconds: float = 0.0
    cost_usd: Decimal = Decimal(0)
    failures: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def f1(self) -> float:
        """The mean of F1 over records and fields."""
        return sum(score.f1 for score in self.scores.values()) / len(self.scores) if self.scores else 0.0


PageReader = Callable[[bytes, TruePage], Sequence[Mapping[str, Any]]]


def load_truth(file: Path) -> Truth:
    """Return the true records of a file; one that only maps files to records is enough.

    Raises:
        BadTruth: the file cannot be read, or states something else.
    """
    try:
        stated = as_mapping(json.loads(file.read_text("utf-8")))
    except (OSError, ValueError) as error:
        raise BadTruth(f"{file}: {error}") from error
    own = as_mapping(stated.get("pages")) or stated
    entries: dict[str, Any] = {
        name: {"records": page} if isinstance(page, list) else page for name, page in own.items()
    }
    raw: dict[str, Any] = {**(stated if "pages" in stated else {}), "pages": entries}
    truth, bad = validated(Truth, raw)
    if truth is None:
        raise BadTruth("; ".join(f"{file}: {problem.field}: {problem.message}" for problem in bad))
    return truth


def evaluate(truth: Truth, folder: Path, read: PageReader, *, key: Sequence[str]) -> Evaluation:
    """Return the scores of all pages of the folder; a page that cannot be read has no records.

    Raises:
        BadTruth: a page's file is not in the folder.
    """
    evaluation, started = Evaluation(), time.perf_counter()
    for name, page in truth.pages.items():
        try:
            body = (folder / name).read_bytes()
        except OSError as error:
            raise BadTruth(f"{name}: {error}") from error
        records: Sequence[Mapping[str, Any]] = ()
        try:
            records = read(body, page)
        except (WorkError, NoRules) as error:
            evaluation.failures[name] = str(error)
        names = key or tuple(page.records[0] if page.records else ())[:1]
        score_records(evaluation.scores, page.records, records, key=names)
        evaluation.pages += 1
    evaluation.seconds = time.perf_counter() - started
    return evaluation


def by_rules(config: EntityConfig) -> PageReader:
    """Return a reader of saved pages that asks no model."""

    def read(body: bytes, page: TruePage) -> Sequence[Mapping[str, Any]]:
        document = Document.of(body, page.content_type, url=page.url)
        return [record.as_dict() for record in read_records(config.kind, document, selectors=config.selectors).records]

    return read


def page_content(body: bytes, page: TruePage) -> PageContent:
    """Return a saved page as a run reads it."""
    document = Document.of(body, page.content_type, url=page.url or None)
    return PageContent(document=document, text=document.visible_utf8.decode(), content_type=page.content_type)


def golden_folder(settings: Settings) -> Path:
    """Return the folder of the golden sets."""
    return settings.sources / FOLDER


def golden_sets(settings: Settings) -> Iterator[tuple[Path, Truth]]:
    """Yield the folder and the true records of each golden set, by name.

    Raises:
        BadTruth: the file of one cannot be used.
    """
    for file in sorted(golden_folder(settings).glob(f"*/{TRUTH}")):
        yield file.parent, load_truth(file)


def config_of(truth: Truth, settings: Settings) -> EntityConfig:
    """Return what reads the pages of a catalogue's set."""
    return load_entity_config(truth.config, settings, entity=truth.entity)


def add_golden_pages(
    connection: Connection, content: ContentStore, settings: Settings, source_id: str, *, name: str, limit: int
) -> Truth | None:
    """Write pages of the source's published rows into a golden set; None without such pages.

    Only pages all of whose rows are accepted: proved, or taken over by hand. Those that the set has stay in it.
    """
    folder = golden_folder(settings) / name
    config = connection.execute(select(sources.c.config).where(sources.c.id == source_id)).scalar_one()
    before = load_truth(folder / TRUTH) if (folder / TRUTH).exists() else None
    stated, entity, uses_model = dict(before.pages) if before else {}, None, bool(before and before.uses_model)
    for row, items in _accepted_pages(connection, source_id, limit):
        body = content.get(row.body_hash)
        file = f"{hashlib.sha256(row.url.encode()).hexdigest()[:LENGTH_OF_NAMES]}.html"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / file).write_bytes(body)
        stated[file] = TruePage(
            url=row.final_url or row.url, content_type=row.content_type, records=tuple(item.data for item in items)
        )
        entity = items[0].entity_type
        uses_model = uses_model or any(item.extraction_method in MODEL_METHODS for item in items)
    if entity is None:
        return None
    floor = before.floor if before else DEFAULT_FLOOR
    truth = Truth(
        pages=stated, source=source_id, entity=entity, config=config or {}, floor=floor, uses_model=uses_model
    )
    save_truth(folder, truth)
    return truth


def _accepted_pages(connection: Connection, source_id: str, limit: int) -> Iterator[tuple[Any, list[Any]]]:
    newest = (
        select(datasets.c.id)
        .where(datasets.c.source_id == source_id, datasets.c.status == DatasetStatus.PUBLISHED.value)
        .order_by(datasets.c.version.desc())
        .limit(1)
    )
    query = (
        select(data_items, pages.c.url, snapshots.c.body_hash, snapshots.c.final_url, snapshots.c.content_type)
        .join(pages, pages.c.id == data_items.c.page_id)
        .join(snapshots, snapshots.c.id == data_items.c.snapshot_id)
        .where(data_items.c.dataset_id.in_(newest), snapshots.c.body_hash.is_not(None))
        .order_by(data_items.c.page_id, data_items.c.position)
    )
    taken = 0
    for _, group in groupby(connection.execute(query), key=lambda row: row.page_id):
        items = list(group)
        if taken < limit and not any(item.is_flagged for item in items):
            taken += 1
            yield items[0], items


def save_truth(folder: Path, truth: Truth) -> None:
    """Write the set's file, in an order that does not change."""
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(truth.model_dump(mode="json", exclude_defaults=True), indent=1, sort_keys=True)
    (folder / TRUTH).write_text(f"{text}\n", "utf-8")


def worse_golden_sets(settings: Settings) -> list[Finding]:
    """Return the golden sets below their floor, and those that models read and nobody scored since a prompt changed."""
    findings: list[Finding] = []
    try:
        for folder, truth in golden_sets(settings):
            if (message := _reason_for_red(settings, folder, truth)) is not None:
                findings.append(Finding(subject=folder.name, message=message))
    except (BadTruth, UnknownEntityType, BadEntityType, BadSelectors) as error:
        findings.append(Finding(subject=FOLDER, message=str(error)))
    return findings


def _reason_for_red(settings: Settings, folder: Path, truth: Truth) -> str | None:
    config = config_of(truth, settings)
    if not truth.uses_model:
        evaluation = evaluate(truth, folder, by_rules(config), key=truth.key or config.kind.key_fields[:1])
        return None if evaluation.f1 >= truth.floor else f"F1 {evaluation.f1:.3f} is below {truth.floor}"
    if truth.scored is None or truth.scored.reader != config.reader_hash(settings):
        return "reader, prompt or model changed since it was scored"
    return None if truth.scored.f1 >= truth.floor else f"F1 {truth.scored.f1:.3f} is below {truth.floor}"
