"""The `ingest` command line, one module per noun.

Commands read arguments, files and the environment, print tables or JSON, and exit with 0, 1 or 2.
They contain no business rules and no SQL: each calls the functions that the jobs call.
Business rules and SQL do not belong here.
"""

try:
    from ingestion_pipeline.cli.main import main
except KeyboardInterrupt:  # during the import
    raise SystemExit("\nstopped by Ctrl-C") from None

__all__ = ["main"]
