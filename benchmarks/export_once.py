"""One export of all courses in a process of its own: ours or the peer's; prints what it took."""

import json
import resource
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from ingestion_pipeline.exports.export_request import ExportRequest
from ingestion_pipeline.exports.exporting import export
from ingestion_pipeline.exports.formats import Format
from ingestion_pipeline.store import Store, open_store

# The joins and the filter of ours; fields, proofs and rules are left to what follows.
QUERY = """
    SELECT i.id AS item_id, i.item_key, i.data, i.grounding, i.extraction_method, i.model, i.confidence,
           i.snapshot_id, i.page_id, p.url AS page_url, s.fetched_at, p.read_at,
           d.source_id, d.id AS dataset_id, d.version AS dataset_version
    FROM data_items AS i
    JOIN datasets AS d ON d.id = i.dataset_id
    JOIN pages AS p ON p.id = i.page_id
    LEFT JOIN snapshots AS s ON s.id = i.snapshot_id
    WHERE d.status = 'published' AND NOT i.is_repeat AND NOT i.is_flagged
    ORDER BY i.item_key, i.id
"""


def ours(store: Store, form: str, file: Path) -> int:
    return export(store, ExportRequest(name="course"), Format(form), file).rows


def pandas_script(store: Store, form: str, file: Path) -> int:
    """What one writes in a notebook: all rows, the JSON's fields as columns, one file."""
    import pandas as pd
    from sqlalchemy import text

    with store.read() as connection:
        read = pd.read_sql(text(QUERY), connection)
    data = [json.loads(one) if isinstance(one, str) else one for one in read.pop("data")]
    read.pop("grounding")
    table = pd.concat([pd.DataFrame(data), read], axis=1)
    if form == "parquet":
        table.to_parquet(file, compression="zstd", index=False)
    else:
        table.to_csv(file, index=False)
    return len(table)


WAYS: dict[str, Callable[[Store, str, Path], int]] = {"ours": ours, "pandas": pandas_script}


def main(way: str, url: str, form: str, file: str) -> None:
    """Imports are not counted: whoever exports a hundred thousand rows pays them once."""
    import pandas as pd
    import pyarrow.parquet  # noqa: F401

    assert pd
    with closing(open_store(url)) as store:
        store.now()
        usage = resource.getrusage(resource.RUSAGE_SELF)
        cpu, started = usage.ru_utime + usage.ru_stime, time.perf_counter()
        rows = WAYS[way](store, form, Path(file))
        wall = time.perf_counter() - started
    usage = resource.getrusage(resource.RUSAGE_SELF)
    took = {"rows": rows, "wall": wall, "cpu": usage.ru_utime + usage.ru_stime - cpu}
    print(json.dumps(took | {"peak": usage.ru_maxrss * 1024}))


if __name__ == "__main__":
    main(*sys.argv[1:])
