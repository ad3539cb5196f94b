"""The tables whose rows are kept, and why; all others have a sweep in `retention`.

A new table that grows needs an entry here or a sweep: a test checks it.
"""

from __future__ import annotations

from collections.abc import Mapping

_PUBLISHED = "published records, the purpose of the pipeline"
_PER_SOURCE = "one row for each source, or less"

RETAINED_TABLES: Mapping[str, str] = {
    "series": _PUBLISHED,
    "chapters": _PUBLISHED,
    "chapter_sources": _PUBLISHED,
    "companies": _PUBLISHED,
    "job_listings": f"{_PUBLISHED}; a closed one is recognised when it returns",
    "listing_sources": f"{_PUBLISHED}; a closed one is recognised when it returns",
    "job_matches": f"{_PUBLISHED}; one at the most for each listing",
    "businesses": _PUBLISHED,
    "website_rankings": "histories are drawn from them; one row a day for each business",
    "sources": "removed by disabling only: their ids are permanent partitions",
    "source_versions": "lineage names them; one row for each change of a configuration",
    "source_health": _PER_SOURCE,
    "observed_health": _PER_SOURCE,
    "recipes": _PER_SOURCE,
    "learned_selectors": "one row for each source and type",
    "hosts": "one row for each server, which has its robots.txt and its pace",
    "recipients": "the operator's own",
    "follows": "the operator's own",
    "settings": "the operator's own; one row for each setting",
    "audit_log": "must be available however old; few rows a day",
    "export_cursors": "one row for each export and folder",
    "task_totals": "one row for each kind of task and way to end",
    "measurements": "one row for each figure that is measured",
    "service_heartbeats": "one row for each heartbeat",
    "model_endpoints": "one row for each server of models",
}
