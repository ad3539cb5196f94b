"""The platforms that catalogues are built with, read from `platforms.yaml`."""

import re
from collections.abc import Sequence
from functools import lru_cache
from importlib import import_module, resources
from typing import Any
from urllib.parse import urlsplit

import yaml
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from ingestion_pipeline.catalogs.detection.link_shapes import Cluster
from ingestion_pipeline.catalogs.detection.page_analysis import PageAnalysis

COURSEDOG = "coursedog"


class CatalogPlatform(BaseModel):
    """How a platform is recognised, and which of its links lead on."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    marks: tuple[str, ...] = Field(min_length=1)
    urls: tuple[str, ...] = ()
    detail: str | None = None
    links: tuple[str, ...] = ()
    school_ids: tuple[str, ...] = ()


@lru_cache(maxsize=1)
def platforms() -> tuple[CatalogPlatform, ...]:
    """Return the known platforms in the order in which they are tried."""
    file = resources.files("ingestion_pipeline.catalogs.detection") / "platforms.yaml"
    return TypeAdapter(tuple[CatalogPlatform, ...]).validate_python(yaml.safe_load(file.read_text()))


def platform_of(page: PageAnalysis) -> CatalogPlatform | None:
    """Return the first platform whose marks the page or its URL has."""
    for platform in platforms():
        if any(_compiled(mark).search(page.html) for mark in platform.marks):
            return platform
        if any(_compiled(mark).search(page.url) for mark in platform.urls):
            return platform
    return None


def school_ids(platform: CatalogPlatform, html: str) -> tuple[str, ...]:
    """Return the school ids that the page may mean, the most certain first."""
    matches = (match[1] for text in platform.school_ids for match in _compiled(text).finditer(html))
    return tuple(dict.fromkeys(matches))


def platform_clusters(platform: CatalogPlatform, pages: Sequence[PageAnalysis]) -> list[Cluster]:
    """Return the links of these sibling pages of the platform's own shapes, deepest level first.

    A shape below a page's own URL belongs to that page alone, and to none of its siblings.
    """
    address = pages[0].url.partition("?")[0].rstrip("/") + "/"
    own = re.sub(r"([.+*?()|\[\]{}^$\\])", r"\\\1", address)
    hosts = {urlsplit(page.url).netloc for page in pages}
    anchors = list({link.url: link for page in pages for link in page.anchors}.values())
    clusters: list[Cluster] = []
    for text in platform.links:
        if "{own}" in text and len(pages) > 1:
            continue
        pattern = text.replace("{own}", own)
        matching = tuple(
            anchor
            for anchor in anchors
            if urlsplit(anchor.url).netloc in hosts and _compiled(pattern).search(anchor.url)
        )
        if matching:
            clusters.append(Cluster(pattern=pattern, anchors=matching))
    return clusters


@lru_cache(maxsize=200)
def _compiled(pattern: str) -> Any:  # noqa: ANN401 - re2 has no annotations
    re2: Any = import_module("re2")  # pages are searched: no page may make that slow
    options = re2.Options()
    options.case_sensitive = False
    options.log_errors = False
    return re2.compile(pattern, options)
