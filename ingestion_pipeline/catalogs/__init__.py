"""Catalogue ingestion: a recipe defines which pages a catalogue has, rules extract their records.

Input: sources of kind `catalog`, each with its recipe. Output: extractions, with each page that
was found exactly once, and records, each field with the span of text that proves it. Fetching and
parsing of pages in general belong to `pages` and `reading`.
"""

from ingestion_pipeline.catalogs.recipes.recipe import BadRecipe, PageType, Recipe, recipe_of

__all__ = ["BadRecipe", "PageType", "Recipe", "recipe_of"]
