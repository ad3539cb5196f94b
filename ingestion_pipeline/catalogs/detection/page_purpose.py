"""Decide by rules what a page is for, from its records and links; a doubt is reported as one."""

from __future__ import annotations

from dataclasses import dataclass

from ingestion_pipeline.catalogs.detection.link_shapes import COURSE_SHARE, Cluster, clusters_of
from ingestion_pipeline.catalogs.detection.page_analysis import PageAnalysis, RecordStats
from ingestion_pipeline.catalogs.recipes.recipe import PageType

TEASER_CHARACTERS = 160  # a course's description in a list of links is a line, not a paragraph
MANY_LINKS = 3  # of one shape and in the content; fewer stand on any page
STRAY_LINKS = 5  # with so many course links beside one record the page may be a list


@dataclass(frozen=True, slots=True, kw_only=True)
class PagePurpose:
    """The page type if rules are sure; None if the linked pages, or a model, must decide."""

    page_type: PageType | None
    why: str
    clusters: tuple[Cluster, ...] = ()

    @property
    def leads_on(self) -> bool:
        """Whether it is a page of links, by their texts or by their number."""
        if self.page_type is not None:
            return self.page_type is not PageType.DETAIL
        return any(
            len(cluster.anchors) >= MANY_LINKS and cluster.aside_share < COURSE_SHARE for cluster in self.clusters
        )


def purpose_of(page: PageAnalysis, *siblings: PageAnalysis) -> PagePurpose:
    """Return what the page is for; the link shapes are those of the page and its siblings."""
    clusters = tuple(clusters_of(page, *siblings))
    courses = next((cluster for cluster in clusters if cluster.course_share >= COURSE_SHARE), None)
    records = page.records
    if records is not None and records.count:
        if (why := _is_list_of(records, courses, page)) is None:
            summary = f"{records.count} records, {records.complete} of them whole"
            return PagePurpose(page_type=PageType.DETAIL, why=summary, clusters=clusters)
        return PagePurpose(page_type=PageType.DETAIL_LINKS, why=why, clusters=_first(courses, clusters))
    if courses is not None:
        why = f"{courses}, with the words of courses"
        return PagePurpose(page_type=PageType.DETAIL_LINKS, why=why, clusters=_first(courses, clusters))
    return PagePurpose(page_type=None, why=_doubt(page, clusters), clusters=clusters)


def _first(first: Cluster | None, clusters: tuple[Cluster, ...]) -> tuple[Cluster, ...]:
    return clusters if first is None else (first, *(other for other in clusters if other is not first))


def _is_list_of(records: RecordStats, courses: Cluster | None, page: PageAnalysis) -> str | None:
    """Explain why the records are only a list of linked ones; None if they are the records."""
    if courses is None:
        return None
    links = len(courses.anchors)
    if not records.complete:
        return f"{records.count} courses without descriptions, and {courses}"
    is_short = records.description_characters < TEASER_CHARACTERS
    if is_short and links >= 0.8 * records.count and records.count > 1:
        return f"{records.count} courses in a line each, and {courses}"
    is_about_it = any(name and name in page.title for name in records.names)
    if records.count == 1 and links >= STRAY_LINKS and not is_about_it:
        return f"one course among {courses}"
    return None


def _doubt(page: PageAnalysis, clusters: tuple[Cluster, ...]) -> str:
    """Describe what was seen on a page whose type rules cannot decide."""
    seen = "; ".join(str(cluster) for cluster in clusters[:3]) or "no links of one shape"
    records = "no records" if page.records is not None else "records that no rules read"
    form = ", and a form to be filled in" if page.has_form else ""
    return f"{records}, {seen}{form}"
