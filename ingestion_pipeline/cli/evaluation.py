"""`ingest eval` and `ingest golden`: score readers, recipes, prompts and models on saved pages with true records."""

import asyncio
import re
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ingestion_pipeline.cli.output import CommandRefused, echo, is_json, json_option, print_json, print_table
from ingestion_pipeline.cli.session import config_option, environment, opened

if TYPE_CHECKING:
    from ingestion_pipeline.catalogs.golden import Evaluation, PageReader, TruePage, Truth

_FLOOR = re.compile(r"(?:(?P<field>[a-z][a-z0-9_]*)=)?(?P<least>0(?:\.[0-9]+)?|1(?:\.0+)?)")
model_option = click.option("--model", "with_model", is_flag=True, help="Ask models for what rules leave open.")


@dataclass(frozen=True, slots=True)
class _Floors:
    least: Mapping[str | None, float]

    @classmethod
    def of(cls, stated: Sequence[str]) -> "_Floors":
        matches = [_FLOOR.fullmatch(text) for text in stated]
        if bad := [text for text, match in zip(stated, matches, strict=True) if match is None]:
            raise CommandRefused(f"--floor {bad[0]}: give a number up to 1, or FIELD=NUMBER", code="bad_floor")
        return cls({match["field"]: float(match["least"]) for match in matches if match})

    def below(self, evaluation: "Evaluation") -> list[str]:
        """Return what is below its floor, in words."""
        own = {name: score.f1 for name, score in evaluation.scores.items()}
        values = {None: evaluation.f1, **own}
        return [
            f"F1 of {name or 'all fields'} is {values.get(name, 0.0):.3f}, below {least}"
            for name, least in self.least.items()
            if values.get(name, 0.0) < least
        ]


@click.command("eval")
@click.argument("folder", type=click.Path(path_type=Path))
@click.option(
    "--truth", "truth_file", required=True, type=click.Path(path_type=Path), help="JSON file with each page's records."
)
@click.option("--platform", help="Platform whose reader reads the pages; default: the truth's, else catalog.")
@click.option("--entity", help="Entity type of a catalogue's records; default: the truth's, else course.")
@config_option
@click.option("--key", multiple=True, help="Field by which records are told apart; repeatable.")
@model_option
@click.option("--floor", "floors", multiple=True, help="Least F1, of all fields or as FIELD=NUMBER; repeatable.")
@json_option
def eval_(
    *,
    folder: Path,
    truth_file: Path,
    platform: str | None,
    entity: str | None,
    config: dict[str, Any] | None,
    key: tuple[str, ...],
    with_model: bool,
    floors: tuple[str, ...],
) -> None:
    """FieldScore a reader on saved pages, field by field.

    Prints precision, recall and F1 of each field, time and cost. The truth is JSON: the file of each page with its
    records. Exit code 1 below a floor.
    """
    least = _Floors.of(floors)
    truth = _loaded(truth_file)
    options = {"platform": platform, "entity": entity, "config": config, "key": key}
    truth = truth.model_copy(update={name: value for name, value in options.items() if value})
    evaluation = _evaluated(truth, folder, with_model=with_model)
    _print_evaluation(evaluation)
    _exit_below(least.below(evaluation))


@click.group()
def golden() -> None:
    """Add, list and score golden sets of accepted rows."""


@golden.command("add")
@click.argument("source_id", metavar="SOURCE")
@click.option("--name", help="Name of the set; default: the source's.")
@click.option("--pages", "limit", default=5, show_default=True, type=click.IntRange(1, 100), help="Pages to add.")
@json_option
def add(*, source_id: str, name: str | None, limit: int) -> None:
    """Add pages of a catalogue's published rows, with their stored bodies, to a golden set."""
    from ingestion_pipeline.catalogs.golden import add_golden_pages, golden_folder
    from ingestion_pipeline.pages.content.store import ContentStore
    from ingestion_pipeline.store.tables import sources

    chosen = name or source_id.replace(":", "-")
    if not re.fullmatch(r"[a-z0-9][a-z0-9._-]{0,119}", chosen):
        raise CommandRefused(f"{chosen!r} is no name for a set: use a-z, 0-9, dot and dash", code="bad_name")
    with opened() as (settings, store), store.read() as connection:
        if connection.execute(sources.select().where(sources.c.id == source_id)).one_or_none() is None:
            raise CommandRefused(f"no source is called {source_id}; `ingest sources list` shows them", code="no_source")
        content = ContentStore(settings.home / "content")
        truth = add_golden_pages(connection, content, settings, source_id, name=chosen, limit=limit)
        if truth is None:
            message = f"{source_id} has no published rows with stored pages; `ingest extractions list` shows why"
            raise CommandRefused(message, code="no_rows")
        records = sum(len(page.records) for page in truth.pages.values())
        folder = golden_folder(settings) / chosen
        if is_json():
            print_json({"name": chosen, "folder": str(folder), "pages": len(truth.pages), "records": records})
        else:
            echo(f"{folder}: {len(truth.pages)} pages, {records} records")


@golden.command("list")
@json_option
def list_() -> None:
    """List the golden sets."""
    rows = [
        {
            "name": folder.name,
            "source": truth.source,
            "entity": truth.entity,
            "pages": len(truth.pages),
            "records": sum(len(page.records) for page in truth.pages.values()),
            "floor": truth.floor,
            "f1": truth.scored.f1 if truth.scored else None,
        }
        for folder, truth in _sets(())
    ]
    if is_json():
        print_json(rows)
    else:
        print_table(list(rows[0]) if rows else ["name"], [list(row.values()) for row in rows])


@golden.command("score")
@click.argument("names", nargs=-1)
@model_option
@json_option
def score(*, names: tuple[str, ...], with_model: bool) -> None:
    """Read the pages of the golden sets again; exit code 1 if one reads worse than its floor."""
    from ingestion_pipeline.catalogs.golden import Scored, config_of, save_truth
    from ingestion_pipeline.settings import load_settings

    settings = load_settings(environment())
    below: list[str] = []
    results: list[dict[str, Any]] = []
    for folder, truth in _sets(names):
        evaluation = _evaluated(truth, folder, with_model=with_model)
        if with_model or not truth.uses_model:
            reader = config_of(truth, settings).reader_hash(settings)
            save_truth(folder, truth.model_copy(update={"scored": Scored(reader=reader, f1=round(evaluation.f1, 4))}))
        results.append({"name": folder.name, "floor": truth.floor, **_figures(evaluation)})
        if evaluation.f1 < truth.floor:
            below.append(f"{folder.name}: F1 {evaluation.f1:.3f} is below {truth.floor}")
    if is_json():
        print_json(results)
    else:
        columns = ("name", "pages", "f1", "floor", "seconds", "cost_usd")
        print_table(columns, [[result[name] for name in columns] for result in results])
    _exit_below(below)


def _sets(names: Sequence[str]) -> list[tuple[Path, "Truth"]]:
    from ingestion_pipeline.catalogs.golden import BadTruth, golden_sets
    from ingestion_pipeline.settings import load_settings

    try:
        sets = list(golden_sets(load_settings(environment())))
    except BadTruth as error:
        raise CommandRefused(str(error), code="bad_truth") from error
    if unknown := set(names) - {folder.name for folder, _ in sets}:
        raise CommandRefused(f"no golden set is called {min(unknown)}; `ingest golden list` shows them", code="no_set")
    return [(folder, truth) for folder, truth in sets if not names or folder.name in names]


def _loaded(file: Path) -> "Truth":
    from ingestion_pipeline.catalogs.golden import BadTruth, load_truth

    try:
        return load_truth(file)
    except BadTruth as error:
        raise CommandRefused(str(error), code="bad_truth") from error


def _evaluated(truth: "Truth", folder: Path, *, with_model: bool) -> "Evaluation":
    from ingestion_pipeline.catalogs.golden import BadTruth, config_of, evaluate
    from ingestion_pipeline.settings import load_settings

    try:
        if truth.platform == "catalog":
            key = truth.key or config_of(truth, load_settings(environment())).kind.key_fields[:1]
        else:
            key = truth.key
        if with_model:
            return _evaluated_with_model(truth, folder, key)
        return evaluate(truth, folder, _saved_reader(truth), key=key)
    except (BadTruth, ValueError) as error:
        raise CommandRefused(str(error), code="bad_truth") from error


def _saved_reader(truth: "Truth") -> "PageReader":
    """Return what `ingest read` uses: a platform's reader, without network or database."""
    from ingestion_pipeline.cli.read import kind_for, reader_of
    from ingestion_pipeline.reading.structured.items import SavedBody
    from ingestion_pipeline.store.database import system_clock

    kind = kind_for(truth.platform, None)
    read_saved = reader_of(truth.platform, kind, truth.entity)

    # A golden set keeps the source's whole configuration; of a catalogue's, only selectors read a saved page.
    is_catalog = truth.platform == "catalog"
    config = {name: value for name, value in truth.config.items() if not is_catalog or name == "selectors"}
    now = system_clock()

    def read(body: bytes, page: "TruePage") -> Sequence[Mapping[str, Any]]:
        saved = SavedBody(body=body, url=page.url, fetched_at=now)
        return read_saved(truth.platform, kind, saved, config).records

    return read


def _evaluated_with_model(truth: "Truth", folder: Path, key: Sequence[str]) -> "Evaluation":
    """Evaluate as a run reads: rules first, then models; answers that are known cost nothing."""
    from sqlalchemy import func, select

    from ingestion_pipeline.catalogs.extraction.pipeline import PipelineReader
    from ingestion_pipeline.catalogs.extraction.record import ExtractionResult
    from ingestion_pipeline.catalogs.golden import config_of, evaluate, page_content
    from ingestion_pipeline.reading.llm import Billing
    from ingestion_pipeline.reading.llm.client import open_model
    from ingestion_pipeline.store.database import SteadyClock
    from ingestion_pipeline.store.tables import model_calls

    with opened() as (settings, store):
        if not settings.has_model:
            raise CommandRefused("no model configured: set OPENAI_API_KEY or OPENAI_BASE_URL", code="no_model")
        config, clock = config_of(truth, settings), SteadyClock(store.now())
        with store.read() as connection:
            last = connection.execute(select(func.coalesce(func.max(model_calls.c.id), 0))).scalar_one()
        stack = AsyncExitStack()
        with asyncio.Runner() as runner:
            client = runner.run(stack.enter_async_context(open_model(store, settings)))
            reader = PipelineReader(settings, clock.now, client)

            def read(body: bytes, page: "TruePage") -> Sequence[Mapping[str, Any]]:
                result = runner.run(reader.read(config, page_content(body, page), Billing(call_site="evaluation")))
                records = result.records if isinstance(result, ExtractionResult) else ()
                return [record.as_dict() for record in records]

            evaluation = evaluate(truth, folder, read, key=key)
            runner.run(stack.aclose())
        with store.read() as connection:
            spent = select(func.coalesce(func.sum(model_calls.c.cost_usd), 0)).where(model_calls.c.id > last)
            evaluation.cost_usd = connection.execute(spent).scalar_one()
    return evaluation


def _figures(evaluation: "Evaluation") -> dict[str, Any]:
    return {
        "pages": evaluation.pages,
        "f1": round(evaluation.f1, 4),
        "seconds": round(evaluation.seconds, 2),
        "cost_usd": str(evaluation.cost_usd),
        "fields": {
            name: {
                "precision": round(score.precision, 4),
                "recall": round(score.recall, 4),
                "f1": round(score.f1, 4),
                "right": score.right,
                "wrong": score.wrong,
                "missed": score.missed,
            }
            for name, score in evaluation.scores.items()
        },
        "failures": evaluation.failures,
    }


def _print_evaluation(evaluation: "Evaluation") -> None:
    if is_json():
        print_json(_figures(evaluation))
        return
    columns = ("precision", "recall", "f1", "right", "wrong", "missed")
    figures = _figures(evaluation)
    rows = [[name, *(score[column] for column in columns)] for name, score in figures["fields"].items()]
    print_table(["field", *columns], rows, numbers=set(columns))
    for name, failure in evaluation.failures.items():
        echo(f"failed {name}: {failure}", is_error=True)
    echo(
        f"{evaluation.pages} pages, {evaluation.seconds:.2f} seconds, {evaluation.cost_usd} USD, F1 {evaluation.f1:.3f}"
    )


def _exit_below(below: Sequence[str]) -> None:
    for line in below:
        echo(line, is_error=True)
    if below:
        raise click.exceptions.Exit(1)
