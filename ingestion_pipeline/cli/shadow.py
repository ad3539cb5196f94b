"""`ingest shadow`: what this program would publish in place of what another installation has published."""

from dataclasses import asdict

import click

from ingestion_pipeline.cli.output import CommandRefused, echo, is_json, json_option, print_json, print_records
from ingestion_pipeline.cli.session import opened

SHOWN = 5  # sources that are named


@click.command()
@click.option("--examples", type=click.IntRange(0, 10), default=3, show_default=True, help="Rows shown of each table.")
@json_option
def shadow(*, examples: int) -> None:
    """Compare rows and cost with the shadowed installation.

    Run jobs with INGESTION_SHADOW=1 before: they read its snapshots and send nothing.
    """
    from ingestion_pipeline.operations.shadow import difference, shadowing

    with opened() as (settings, store):
        if not settings.shadow:
            message = "this is no shadow: set INGESTION_SHADOW=1, and INGESTION_SHADOW_HOME to what it reads"
            raise CommandRefused(message, code="no_shadow")
        report = difference(store, shadowing(settings))
    if is_json():
        print_json(asdict(report) | {"is_equal": report.is_equal})
        return
    read = report.sources - len(report.unread)
    echo(f"{read} of {report.sources} sources read; {'nothing would change' if report.is_equal else 'it would differ'}")
    for source_id, outcome in list(report.unread.items())[:SHOWN]:
        echo(f"  not read: {source_id}: {outcome}")
    counts = ("same", "added", "changed", "removed")
    records = [
        {"table": name, **{count: getattr(table, count) for count in counts}} for name, table in report.tables.items()
    ]
    if records:
        print_records(records, numbers=set(counts))
    for name, table in report.tables.items():
        for example in table.examples[:examples]:
            echo(f"  {name} {example['change']}: {example['row']}: {example['values']}")
    echo(
        f"models: {report.model_calls} calls would be sent, about {report.model_cost_usd:.4f} dollars;"
        f" the other installation has paid {report.production_cost_30d_usd:.4f} in 30 days"
    )
