"""What an operator types: `ingest` and its commands, one module per noun.

Arguments, files and the environment enter; tables, JSON and exit codes (0, 1, 2) leave.
Decisions and statements do not belong here: a command calls the functions that the jobs call.
"""

try:
    from ingestion_pipeline.cli.main import main
except KeyboardInterrupt:  # while it was being read
    raise SystemExit("\nstopped by Ctrl-C") from None

__all__ = ["main"]
