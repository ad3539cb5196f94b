"""Crawling of catalogues: waiting pages are claimed, fetched and written, and lead to others.

Input: an extraction with its root page. Output: every page that its recipe leads to, once, with its
state. Records are extracted in `extraction`, and `datasets.completion` decides when a crawl is
over.
"""
