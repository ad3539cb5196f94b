"""Catalogues: a recipe says which pages a catalogue has, rules say which records a page states.

Sources of kind `catalog` enter, each with its recipe; extractions leave, with every page that was
found, once, and records leave, each field with the span of the text that proves it. How a page is
fetched or read as such does not belong here, nor does what two systems need.
"""

from ingestion_pipeline.catalogs.recipes.recipe import BadRecipe, PageType, Recipe, recipe_of

__all__ = ["BadRecipe", "PageType", "Recipe", "recipe_of"]
