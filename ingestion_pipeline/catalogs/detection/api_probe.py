"""A vendor's API instead of pages: the school that the page names, confirmed by its catalogues."""

from __future__ import annotations

from typing import Any

from ingestion_pipeline.catalogs.detection.finding import FetchPage
from ingestion_pipeline.catalogs.detection.looked import PageAnalysis
from ingestion_pipeline.catalogs.detection.platforms import COURSEDOG, CatalogPlatform, school_ids
from ingestion_pipeline.catalogs.recipes.coursedog import API_BASE, catalog_ids, catalogs_url
from ingestion_pipeline.catalogs.recipes.recipe import PageType
from ingestion_pipeline.work.errors import Permanent


async def api_recipe(
    look: FetchPage, platform: CatalogPlatform, page: PageAnalysis, *, api_base: str, log: list[str]
) -> dict[str, Any] | None:
    """The recipe, if the API lists catalogues of a school that the page names; else None.

    What it said is added to `log`.
    """
    for school_id in school_ids(platform, page.html):
        try:
            answer = await look.data(catalogs_url(school_id, api_base=api_base))
        except Permanent as error:  # no such school: another id may be the right one
            log.append(f"no catalogues of {school_id}: {error.text[:200]}")
            continue
        if found := catalog_ids(answer):
            log.append(f"its API lists {len(found)} catalogues of {school_id}")
            api = {"provider": COURSEDOG, "school_id": school_id, "catalog_ids": list(found)}
            own = {} if api_base == API_BASE else {"api_base": api_base}
            return {"page_type": PageType.API_REQUEST.value, "api": api | own}
    log.append("its API lists no catalogue; read as pages")
    return None
