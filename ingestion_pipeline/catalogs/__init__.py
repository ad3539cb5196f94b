"""Saved pages and answers of catalogues enter, with what is looked for in them.

Records leave, each field with the span of the text that proves it. Fetching does not belong here,
nor does reading what a page says as such: that is done in the rooms before this one.
"""
