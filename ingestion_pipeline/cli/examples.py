"""What the help of each command ends with: whole command lines, as they are typed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import click

EXAMPLES: Mapping[str, tuple[str, ...]] = {
    "init": ("ingest init",),
    "companies list": (
        "ingest companies list --tier S",
        "ingest companies list --status active --json",
    ),
    "companies show": ("ingest companies show company:acme",),
    "dead-letters discard": (
        "ingest dead-letters discard 7 --reason 'the page is gone for good'",
        "ingest dead-letters discard --source catalog:old --reason 'site closed' --dry-run",
    ),
    "dead-letters list": (
        "ingest dead-letters list --grouped",
        "ingest dead-letters list --class transient --source series:solo",
    ),
    "dead-letters replay": (
        "ingest dead-letters replay --class transient --dry-run",
        "ingest dead-letters replay 7 8",
    ),
    "dead-letters show": (
        "ingest dead-letters show 7",
        "ingest dead-letters show 7 --body > body.html",
    ),
    "demo break": ("ingest demo break", "ingest demo break --repair"),
    "demo mutate": ("ingest demo mutate",),
    "demo run": ("ingest demo run", "ingest demo run --model"),
    "demo serve": ("ingest demo serve --port 8400",),
    "doctor": ("ingest doctor", "ingest doctor --offline --json"),
    "export": (
        "ingest export job_listings --to parquet",
        "ingest export course --source catalog:college --to csv --out courses.csv --evidence",
        "ingest export chapters --to jsonl --since-last",
    ),
    "explain": ("ingest explain chapters:12", "ingest explain job_matches:3 --json"),
    "extractions accept": ("ingest extractions accept 3",),
    "extractions cancel": ("ingest extractions cancel 3 --reason 'wrong recipe'",),
    "extractions list": ("ingest extractions list --source catalog:college --status COMPLETE",),
    "extractions pages": ("ingest extractions pages 3 --status ERROR",),
    "extractions publish": ("ingest extractions publish 3",),
    "extractions rerun": ("ingest extractions rerun 3 --dry-run", "ingest extractions rerun 3"),
    "extractions resume": ("ingest extractions resume 3",),
    "extractions retry": ("ingest extractions retry 3",),
    "extractions start": ("ingest extractions start catalog:college",),
    "follow": ("ingest follow ann lighthouse --mode digest --language en",),
    "unfollow": ("ingest unfollow ann lighthouse",),
    "listings list": (
        "ingest listings list --source job_board:acme --verdict filtered",
        "ingest listings list --company Acme --status open --json",
    ),
    "listings show": ("ingest listings show 12",),
    "matches explain": ("ingest matches explain 12",),
    "matches list": ("ingest matches list --source job_board:acme --limit 20",),
    "metrics": (
        "ingest metrics",
        "ingest metrics --out /var/lib/node_exporter/ingestion.prom",
        "ingest metrics --serve 9464",
    ),
    "notices list": ("ingest notices list --status failed --recipient ann",),
    "profile check": ("ingest profile check",),
    "profile example": ("ingest profile example > profile.yaml",),
    "read": (
        "ingest read feed.xml --platform rss --kind series --json",
        "ingest read jobs.json --platform greenhouse --json",
        "curl -s https://college.example/courses | ingest read - --platform catalog --json",
    ),
    "recipients add": (
        "ingest recipients add ann https://hooks.example/ann --mode immediate",
        "ingest recipients add bob mailto:bob@example.org --mode digest --kinds chapter",
    ),
    "recipients list": ("ingest recipients list --json",),
    "recipients remove": ("ingest recipients remove ann",),
    "recipients secret": ("ingest recipients secret ann",),
    "recipients test": ("ingest recipients test ann",),
    "series list": ("ingest series list --json",),
    "series merge": ("ingest series merge solo-levelling solo-leveling --dry-run",),
    "series restore": ("ingest series restore solo 12.5",),
    "series show": ("ingest series show solo",),
    "series split": ("ingest series split solo --source series:solo-es --into solo-es",),
    "series withdraw": ("ingest series withdraw solo 12.5 --reason 'never published'",),
    "settings list": ("ingest settings list", "ingest settings list --json"),
    "settings set": ("ingest settings set hosts.delay_seconds 2",),
    "settings unset": ("ingest settings unset hosts.delay_seconds",),
    "sources add": (
        "ingest sources add https://a.example/feed.xml --id series:solo --kind series",
        "ingest sources add https://boards.greenhouse.io/acme --id job_board:acme"
        " --kind job_board --tier hot",
        "ingest sources add acme.example --kind website",
    ),
    "sources disable": ("ingest sources disable series:solo --reason 'moved'",),
    "sources enable": ("ingest sources enable series:solo",),
    "sources import": ("ingest sources import sources/mine.yaml",),
    "sources list": ("ingest sources list --kind job_board --json",),
    "sources remove": ("ingest sources remove series:solo",),
    "sources scrape": ("ingest sources scrape --target-matches 5 --max-sources 10",),
    "sources show": ("ingest sources show series:solo",),
    "sources update": (
        "ingest sources update series:solo --tier hot",
        "ingest sources update catalog:college --detect",
    ),
    "status": (
        "ingest status",
        "ingest status --json",
        "ingest status --workers",
        "ingest status --fail-on daemon --fail-on sources",
    ),
    "websites list": ("ingest websites list", "ingest websites list --status failed --json"),
    "websites show": (
        "ingest websites show website:acme",
        "ingest websites show website:acme --json",
    ),
}


def commands(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    """What it does, or each of its own commands, by the words that are typed after `ingest`."""
    if not isinstance(command, click.Group):
        yield path, command
        return
    for name, inner in sorted(command.commands.items()):
        yield from commands(inner, f"{path} {name}")


def show_examples(path: str, command: click.Command) -> None:
    """Its help, or that of each of its commands, ends with its own."""
    for inner_path, inner in commands(command, path):
        lines = (f"  {line}" for line in EXAMPLES.get(inner_path, ()))
        # `\b`: click leaves the lines as they are.
        inner.epilog = "\n".join(["\b", "Examples:", *lines])
