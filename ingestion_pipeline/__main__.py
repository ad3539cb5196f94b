"""`python -m ingestion_pipeline`: the command `ingest`."""

from ingestion_pipeline.cli import main

if __name__ == "__main__":
    main(prog_name="ingest")
