"""`python -m ingestion_pipeline`: the command `ingest`."""

from ingestion_pipeline.cli import main

main(prog_name="ingest")
