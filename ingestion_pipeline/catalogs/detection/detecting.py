"""The way from a catalogue's first page to its recipe, level by level.

Records on the page end it. Else the page leads on: its links' shapes are tried in the order in
which they promise most, a few pages of each are looked at, and what those are decides. Only where
that decides nothing is a model asked, if there is one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ingestion_pipeline.catalogs.detection.api_probe import api_recipe
from ingestion_pipeline.catalogs.detection.clusters import Cluster, is_proved
from ingestion_pipeline.catalogs.detection.finding import (
    FoundRecipe,
    Look,
    NotDetected,
    Voters,
    spread,
)
from ingestion_pipeline.catalogs.detection.judging import Judged, judged
from ingestion_pipeline.catalogs.detection.lists import found_list
from ingestion_pipeline.catalogs.detection.looked import LookedPage
from ingestion_pipeline.catalogs.detection.platforms import (
    COURSEDOG,
    Platform,
    known_clusters,
    platform_of,
)
from ingestion_pipeline.catalogs.detection.wording import (
    CURE,
    by_script,
    counting,
    is_longer,
    mixed,
    summary,
    unsure,
    where,
)
from ingestion_pipeline.catalogs.recipes.coursedog import API_BASE
from ingestion_pipeline.catalogs.recipes.patterns import BadPattern, LinkPattern
from ingestion_pipeline.catalogs.recipes.recipe import BadRecipe, PageType, recipe_of
from ingestion_pipeline.catalogs.recipes.seen import identity
from ingestion_pipeline.catalogs.recipes.simplified import matched_links, simplified_markdown
from ingestion_pipeline.settings.catalogs import Detection
from ingestion_pipeline.work.errors import Permanent, WorkError

TRIED_SHAPES = 3


@dataclass(slots=True)
class Detective:
    """One catalogue's detection; `log` is what decided, for the evidence."""

    look: Look
    settings: Detection
    entity: str = "course"
    api_base: str = API_BASE
    voters: Voters | None = None
    log: list[str] = field(default_factory=list[str])
    platform: Platform | None = None

    async def detect(self, url: str) -> FoundRecipe:
        """The recipe of the catalogue at `url`.

        Raises:
            NotDetected: with what was seen, and the cure.
            WorkError: the page, or an API that it names, was not got.
        """
        root = await self.look.page(url)
        self.platform = platform_of(root)
        if self.platform is not None:
            self.log.append(f"built with {self.platform.name}")
        recipe = await self._by_api(root) or await self._level(root, depth=0, known=frozenset())
        if root.is_rendered:
            recipe = recipe | {"render": True}
        self._check(recipe)
        name = self.platform.name if self.platform else None
        return FoundRecipe(
            recipe=recipe,
            message=f"{summary(recipe)}; {'; '.join(self.log)}"[:2_000],
            evidence={"platform": name, "decided": list(self.log)},
        )

    def _check(self, recipe: Mapping[str, Any]) -> None:
        try:
            recipe_of({"recipe": recipe})
        except BadRecipe as error:
            raise NotDetected(f"what was found is no recipe: {error}; {CURE}") from None

    async def _by_api(self, root: LookedPage) -> dict[str, Any] | None:
        if self.platform is None or self.platform.name != COURSEDOG or self.entity != "course":
            return None
        return await api_recipe(
            self.look, self.platform, root, api_base=self.api_base, log=self.log
        )

    # --- one level of pages

    async def _level(
        self, page: LookedPage, *, depth: int, known: frozenset[str]
    ) -> dict[str, Any]:
        found = judged(page)
        if found.page_type is PageType.DETAIL:
            self.log.append(f"{where(depth)} is DETAIL: {found.why}")
            return {"page_type": PageType.DETAIL.value, **await self._list(page)}
        if depth > self.settings.category_levels:
            most = self.settings.category_levels
            raise NotDetected(
                f"lists lead to lists more than {most} levels deep, the last at {page.url};"
                f" write config.recipe by hand, or raise detection.category_levels"
            )
        tried: list[str] = []
        # Where no rules read the records, no page that is looked at could confirm a shape.
        shapes = self._candidates(page, found) if page.records is not None else []
        for cluster in shapes[:TRIED_SHAPES]:
            level = await self._followed(page, cluster, found, depth, known, tried)
            if level is not None:
                return level
        if page.records is not None and page.records.complete:
            self.log.append(f"{where(depth)} is DETAIL: its links hold no more than it does")
            return {"page_type": PageType.DETAIL.value, **await self._list(page)}
        if said := by_script(page):
            raise NotDetected(said, code="by_script")
        return await self._voted(page, found, depth, known, tried)

    def _candidates(self, page: LookedPage, found: Judged) -> list[Cluster]:
        """The platform's own links, then the shapes by rank; each set of links once."""
        own = [] if self.platform is None else known_clusters(self.platform, page)
        by_links: dict[frozenset[str], Cluster] = {}
        for one in (*own, *found.clusters):
            by_links.setdefault(frozenset(anchor.url for anchor in one.anchors), one)
        return list(by_links.values())

    async def _followed(
        self,
        page: LookedPage,
        cluster: Cluster,
        found: Judged,
        depth: int,
        known: frozenset[str],
        tried: list[str],
    ) -> dict[str, Any] | None:
        """The level whose links these are; None if they lead nowhere, with why in `tried`."""
        links = [one.url for one in cluster.anchors]
        if not self._is_on(page, cluster.pattern, links):
            tried.append(f"the pattern {cluster.pattern!r} does not find its own links")
            return None
        children = await self._children(page, links, known, tried)
        kinds = {child.url: judged(child) for child in children}
        details = [one for one in children if kinds[one.url].page_type is PageType.DETAIL]
        lists = [one for one in children if kinds[one.url].leads_on]
        if details and lists:
            tried.append(mixed(cluster, details, lists, kinds))
            return None
        if not details and not lists:
            tried.append(f"{cluster} lead to pages without records or links")
            return None
        is_of_courses = found.page_type is PageType.DETAIL_LINKS and cluster is found.clusters[0]
        if lists and is_of_courses and cluster.course_share > 0:
            tried.append(
                f"{cluster} have the words of courses, but lead to pages of links"
                f" ({lists[0].url}: {kinds[lists[0].url].why}); DETAIL_LINKS must lead to DETAIL"
            )
            return None
        return await self._joined(page, cluster, details, lists, depth, known)

    async def _joined(
        self,
        page: LookedPage,
        cluster: Cluster,
        details: Sequence[LookedPage],
        lists: Sequence[LookedPage],
        depth: int,
        known: frozenset[str],
    ) -> dict[str, Any]:
        if details:
            many = max((one.records.count for one in details if one.records), default=0)
            kind = PageType.CATEGORY_LINKS if many > 1 else PageType.DETAIL_LINKS
            why = f"{len(details)} of them looked at hold records"
        else:
            kind = PageType.CATEGORY_LINKS
            why = f"{len(lists)} of them looked at lead on"
        self.log.append(f"{where(depth)} is {kind}: {cluster}, {why}")
        if details:
            fullest = max(details, key=lambda one: len(one.following))
            inner = {"page_type": PageType.DETAIL.value, **await self._list(fullest)}
        else:
            fullest = max(lists, key=lambda one: len(one.anchors))
            inner = await self._level(fullest, depth=depth + 1, known=known | page.targets)
        level = {"page_type": kind.value, "link_pattern": cluster.pattern, "links": inner}
        return level | await self._list(page)

    def _is_on(self, page: LookedPage, pattern: str, examples: Sequence[str]) -> bool:
        """Whether the pattern finds its examples on the page that it came from."""
        try:
            found = matched_links(simplified_markdown(page.html), LinkPattern(pattern), page.url)
            # A link that only a footer or a script writes is in no simplified Markdown.
            there = [url for url in examples if identity(url) in set(map(identity, found))]
            return is_proved(pattern, there, found) and len(there) * 2 >= len(examples)
        except BadPattern:
            return False

    async def _children(
        self, page: LookedPage, links: Sequence[str], known: frozenset[str], tried: list[str]
    ) -> list[LookedPage]:
        """A few of the links' pages, without what they share with the pages above them."""
        seen = known | page.targets
        children: list[LookedPage] = []
        last: WorkError | None = None
        for url in spread(links, self.settings.samples):
            try:
                children.append((await self.look.page(url)).without(seen))
            except Permanent as error:
                last = error
                tried.append(f"{url} was not got: {error.text[:200]}")
        if not children and last is not None:
            self.log.append(f"no linked page was got: {last.text[:200]}")
        return children

    async def _list(self, page: LookedPage) -> dict[str, Any]:
        """How the page's list goes on; a count that may be but a part of it is looked after."""
        found = found_list(page)
        if found is None:
            return {}
        if found.is_open and found.last_url is not None:
            try:
                further = found_list(await self.look.page(found.last_url))
            except Permanent:
                further = None
            if further is not None and is_longer(further, found):
                self.log.append("its list is longer than its first page shows: page by page")
                return {"pagination": dict(found.chained)}
        self.log.append(f"its list goes on by {counting(found)}")
        return {"pagination": dict(found.pagination)}

    # --- where rules are not sure

    async def _voted(
        self,
        page: LookedPage,
        found: Judged,
        depth: int,
        known: frozenset[str],
        tried: Sequence[str],
    ) -> dict[str, Any]:
        if self.voters is None:
            raise NotDetected(unsure(page, found, tried, depth), code="unsure")
        kinds = await self.voters.page_type(page)
        self.log.append(f"{where(depth)}: a model's votes on its page type: {kinds}")
        kind = PageType(kinds.winner) if kinds.winner in set(PageType) else None
        if kind is None:
            kind = PageType.DETAIL_LINKS
            self.log.append("that decided nothing: it is taken for DETAIL_LINKS")
        pagination = await self._voted_list(page)
        if kind is PageType.DETAIL:
            return {"page_type": kind.value, **pagination}
        patterns = await self.voters.link_pattern(page)
        self.log.append(f"votes on its links: {patterns}")
        if patterns.winner is None:
            said = f"a model's votes on the links of {page.url} decided nothing: {patterns}"
            raise NotDetected(f"{said}; write config.recipe by hand")
        inner = await self._voted_children(page, kind, patterns.winner, depth, known)
        return {
            "page_type": kind.value,
            "link_pattern": patterns.winner,
            "links": inner,
            **pagination,
        }

    async def _voted_children(
        self, page: LookedPage, kind: PageType, pattern: str, depth: int, known: frozenset[str]
    ) -> dict[str, Any]:
        markdown = simplified_markdown(page.html)
        links = matched_links(markdown, LinkPattern(pattern), page.url)
        problems: list[str] = []
        children = await self._children(page, links, known, problems)
        kinds = {one.url: await self._kind_of(one) for one in children}
        said = ", ".join(f"{url} {found}" for url, found in kinds.items())
        if not kinds:
            raise NotDetected(f"none of the links of {page.url} was got: {'; '.join(problems)}")
        if len(set(kinds.values())) > 1:
            raise NotDetected(
                f"the links of {page.url} that {pattern!r} finds lead to pages of several types:"
                f" {said}; write config.recipe by hand, with a narrower link_pattern",
                code="mixed_pages",
            )
        inner = next(iter(kinds.values()))
        if inner is PageType.DETAIL:
            return {"page_type": inner.value, **await self._list(children[0])}
        if kind is PageType.DETAIL_LINKS:
            raise NotDetected(
                f"DETAIL_LINKS must lead to DETAIL, but the links of {page.url} lead to others:"
                f" {said}; write config.recipe by hand",
                code="mixed_pages",
            )
        return await self._level(children[0], depth=depth + 1, known=known | page.targets)

    async def _kind_of(self, page: LookedPage) -> PageType:
        found = judged(page)
        if found.page_type is not None or self.voters is None:
            return found.page_type or PageType.DETAIL_LINKS
        winner = (await self.voters.page_type(page)).winner
        return PageType(winner) if winner in set(PageType) else PageType.DETAIL_LINKS

    async def _voted_list(self, page: LookedPage) -> dict[str, Any]:
        by_rules = await self._list(page)
        if by_rules or self.voters is None:
            return by_rules
        votes = await self.voters.pagination(page)
        self.log.append(f"votes on its pagination: {votes}")
        return {"pagination": json.loads(votes.winner)} if votes.winner else {}
