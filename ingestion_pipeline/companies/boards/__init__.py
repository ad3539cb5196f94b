"""Ingests polled job boards: postings become listings, deduplicated across boards.

Each new or changed listing gets an evaluation task; the evaluation itself is in `matching`.
"""
