"""Polling: fetch the feeds of due sources, read them, ingest them in batches."""
