"""Catalogues: a recipe says which pages a catalogue has and how one leads to the next.

Sources of kind `catalog` enter, each with its recipe; extractions leave, with their steps and every
page that was found, once, and where its content is kept. How a page is fetched does not belong
here, nor does what two systems need.
"""

from ingestion_pipeline.catalogs.recipe import BadRecipe, PageType, Recipe, recipe_of

__all__ = ["BadRecipe", "PageType", "Recipe", "recipe_of"]
