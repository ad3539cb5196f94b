"""Datasets: rows, carry-over of unchanged pages, quality gates, publication, completion."""
