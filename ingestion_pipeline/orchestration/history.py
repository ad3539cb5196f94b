"""How long Dagster's own history is kept: runs that ended, with all their events."""

from datetime import datetime
from itertools import islice

import dagster as dg

ENDED = (dg.DagsterRunStatus.SUCCESS, dg.DagsterRunStatus.FAILURE, dg.DagsterRunStatus.CANCELED)
_EVENTS = 500  # Dagster asks for each by its number, and a statement takes so many


def forget_runs(
    instance: dg.DagsterInstance,
    *,
    before: datetime,
    at_most: int,
    job: str | None = None,
    dry_run: bool = False,
) -> int:
    """Runs (of the job, if one is named) that ended before, oldest first; how many went, or would.

    A run that has the newest materialization of an asset's partition stays however old it is:
    without it the partition would be shown as missing. Two at a time do no harm: what is gone is
    gone for both.
    """
    ended = dg.RunsFilter(statuses=list(ENDED), updated_before=before, job_name=job)
    newest_first = instance.get_run_ids(ended)
    if not newest_first:  # nothing more is asked of the storage, five minutes after five minutes
        return 0
    shown = _with_newest_materializations(instance)
    chosen = list(islice((one for one in reversed(newest_first) if one not in shown), at_most))
    if not dry_run:
        for run_id in chosen:
            instance.delete_run(run_id)
    return len(chosen)


def _with_newest_materializations(instance: dg.DagsterInstance) -> set[str]:
    """The runs that the asset pages show."""
    runs: set[str] = set()
    kind = dg.DagsterEventType.ASSET_MATERIALIZATION
    for key in instance.all_asset_keys():
        latest = instance.get_latest_materialization_event(key)
        if latest is not None:
            runs.add(latest.run_id)
        numbers = sorted(instance.get_latest_storage_id_by_partition(key, kind).values())
        for start in range(0, len(numbers), _EVENTS):
            some = dg.AssetRecordsFilter(key, storage_ids=numbers[start : start + _EVENTS])
            found = instance.fetch_materializations(some, limit=_EVENTS)
            runs |= {record.run_id for record in found.records}
    return runs
