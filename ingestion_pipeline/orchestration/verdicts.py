"""When a run as a whole has failed: our network is down, or nothing that it tried got through."""

from collections.abc import Mapping

import dagster as dg

from ingestion_pipeline.pages.http_fetcher import HttpFetcher

# Counts of a run that are neither a success nor a failure.
_NEUTRAL = frozenset({"given_back", "lost", "needless", "put_off", "skipped", "unwanted"})


def network_problem(fetcher: HttpFetcher) -> str | None:
    """Return the outage of our own that the run met; None if it met none."""
    return fetcher.network.problem if fetcher.network is not None else None


def fail_if_network_down(problem: str | None) -> None:
    """Fail the run if its network was down; what it released is claimed by a later run."""
    if problem is not None:
        raise dg.Failure(problem, allow_retries=False)


def fail_if_all_failed(counts: Mapping[str, int], noun: str) -> None:
    """Fail the run if something failed and nothing succeeded; a retry is no success."""
    failed, retried = counts.get("failed", 0), counts.get("retried", 0)
    succeeded = [n for name, n in counts.items() if name not in _NEUTRAL | {"failed", "retried"}]
    if any(succeeded) or not failed + retried:
        return
    reason = f"all {failed} {noun} failed; `ingest dead-letters list` shows why"
    if not failed:
        reason = f"no {noun} got through; they are tried again, `ingest status` shows why"
    raise dg.Failure(reason, allow_retries=False)
