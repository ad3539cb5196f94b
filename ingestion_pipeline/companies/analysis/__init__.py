"""Extracts facts, technologies, job boards and a score from the pages of a company's website.

Fetching pages and probing boards belong to other packages.
"""
