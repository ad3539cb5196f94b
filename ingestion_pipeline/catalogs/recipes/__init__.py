"""Recipes: which pages a catalogue has, written by people or detected, and which pages follow.

Input: a configuration or a stored recipe. Output: a checked recipe and, for a fetched page, the
pages that follow from it. Nothing here fetches, and only `registry` uses the database.
"""
