"""Recipes: which pages a catalogue has, as people write it or detection finds it, and what follows.

A configuration or a stored recipe enters; a checked recipe leaves, and for a page at hand the pages
that follow from it. Nothing here fetches, and only `stored` knows the database.
"""
