"""`ingest metrics`: the numbers of this moment as Prometheus text: printed, written or served."""

from __future__ import annotations

from pathlib import Path

import click

from ingestion_pipeline.cli.opening import opened
from ingestion_pipeline.cli.output import say


@click.command()
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write a file, whole or not at all: for node_exporter's textfile collector.",
)
@click.option(
    "--serve",
    "port",
    type=click.IntRange(0, 65_535),
    help="Answer GET /metrics on this port of 127.0.0.1 until it is interrupted; 0: any port.",
)
def metrics(*, out: Path | None, port: int | None) -> None:
    """Print the numbers as Prometheus text.

    Queues, runs, polls, sources and models: what is counted, at this moment.

    Names and meanings stand in docs/operating.md.
    """
    if out is not None and port is not None:
        raise click.UsageError("--out writes once, --serve goes on: take one of them")
    if port is not None:
        from ingestion_pipeline.cli.metrics_server import serve

        serve(port)
    elif out is None:
        click.echo(metrics_now(), nl=False)
    else:
        _write(out, metrics_now())


def metrics_now() -> str:
    """The numbers of this moment, from the store of this environment."""
    from ingestion_pipeline.upkeep.metrics import exposition
    from ingestion_pipeline.upkeep.numbers import numbers
    from ingestion_pipeline.upkeep.standing import standings

    with opened() as (settings, store), store.read() as connection:
        now = store.clock.now(connection)
        found = standings(connection, settings, now=now)
        return exposition(numbers(connection, settings, found, now=now))


def _write(out: Path, text: str) -> None:
    """Beside its place, then moved into it: a collector never reads half of it."""
    from ingestion_pipeline.exports.writing import replacing

    with replacing(out) as part:
        part.write_text(text)
        part.chmod(0o644)  # a collector is seldom who runs this
    say(f"written to {out}")
