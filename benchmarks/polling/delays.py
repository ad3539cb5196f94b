"""Each rule against ours: on generated families, on all of them together, and on recorded histories."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.database import Database
from benchmarks.figure import Skipped
from benchmarks.polling.comparison import INSTALLATION, Delay, compare
from benchmarks.polling.families import (
    DAY,
    FAMILIES,
    NO_SAMPLES,
    START,
    History,
    recorded_documents,
    recorded_releases,
    synthetic,
)
from benchmarks.table import Line
from ingestion_pipeline.settings import load_settings

GOAL = 0.7  # of the mean delay by tiers, and by Mihon's rule, on the mixed set
NEVER_WORSE = 1.05
RECORDED = {"uniform": 0.8, "rate only": 0.95}
WITHIN = 1.02  # requests of an installation, against what the tiers would make
SMALL = (5, 30)


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """How many sources of each family and how long; how many recorded documents, and their last days."""

    sources: int = 20
    days: float = 180
    documents: int | None = None
    document_days: float | None = 720


def measure(database: Database, sizes: Sizes | None = None) -> Iterator[Line | Skipped]:
    """Yield the lines; the database is not used."""
    del database
    sizes = sizes or Sizes()
    mixed: list[History] = []
    for name in FAMILIES:
        histories = synthetic(name, count=sizes.sources, days=sizes.days)
        mixed += histories
        yield from _lines(name, histories, limits={"tiers": NEVER_WORSE})
    yield from _lines("mixed set", mixed, limits={"tiers": GOAL, "mihon": GOAL})
    if not (releases := recorded_releases()):
        yield Skipped("delay, recorded histories", "-", NO_SAMPLES)
    for number, history in enumerate(releases, start=1):
        yield from _lines(f"recorded releases {number}", [history], limits={})
    for is_used, label in ((True, "documents, constants chosen on them"), (False, "documents, not used for constants")):
        documents = recorded_documents(used_for_constants=is_used, count=sizes.documents, days=sizes.document_days)
        if not documents:
            continue
        for count in [*(count for count in SMALL if count < len(documents)), len(documents)]:
            yield from _lines(f"{count} recorded {label}", documents[:count], limits=RECORDED)


def _lines(name: str, histories: Sequence[History], *, limits: Mapping[str, float]) -> Iterator[Line]:
    days = (max(history.end for history in histories) - START) / DAY
    results = compare(histories, days=days, settings=load_settings({}))
    ours, budget = results.pop("ours"), results["tiers"].requests
    for peer, theirs in results.items():
        yield _line(name, peer, ours, theirs, limits.get(peer))
    yield Line(
        claim=f"requests of an installation against its tiers, {name}",
        database="-",
        ours=f"{results[INSTALLATION].requests:,}",
        peer=f"tiers: {budget:,}",
        ratio=results[INSTALLATION].requests / budget,
        limit=WITHIN,
        is_less_better=True,
        note="",
    )


def _line(name: str, peer: str, ours: Delay, theirs: Delay, limit: float | None) -> Line:
    return Line(
        claim=f"minutes late at equal requests, {name}: mean (90th percentile)",
        database="-",
        ours=f"{ours.mean:.1f} ({ours.p90:.0f})",
        peer=f"{peer}: {theirs.mean:.1f} ({theirs.p90:.0f}), {theirs.requests:,} requests",
        ratio=ours.mean / theirs.mean if theirs.mean else None,
        limit=limit,
        is_less_better=True,
        note="",
    )
