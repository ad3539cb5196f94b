"""The recipe detector: finds a recipe by API, rules or votes, and proves it on further pages."""

import json
from collections.abc import Awaitable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

from ingestion_pipeline.catalogs.detection.model_votes import DetectionLimits, ModelVoters, NotDetected
from ingestion_pipeline.catalogs.detection.page_analysis import (
    COURSE_SHARE,
    COURSEDOG,
    MANY_LINKS,
    PAGE_BY_PAGE,
    Anchor,
    CatalogPlatform,
    Cluster,
    PageAnalysis,
    PagePurpose,
    find_paging,
    platform_clusters,
    platform_of,
    purpose_of,
    school_ids,
    usable_anchors,
    widen_cluster,
)
from ingestion_pipeline.catalogs.recipes.next_pages import identity
from ingestion_pipeline.catalogs.recipes.patterns import BadPattern, LinkPattern, matched_links
from ingestion_pipeline.catalogs.recipes.recipe import (
    API_BASE,
    BadRecipe,
    PageType,
    Recipe,
    catalog_ids,
    catalogs_url,
    recipe_of,
)
from ingestion_pipeline.tasks.errors import Permanent, WorkError


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundRecipe:
    """A recipe in the form of `config.recipe`, a message for people, and the evidence for it."""

    recipe: Mapping[str, Any]
    message: str
    evidence: Mapping[str, Any] = field(default_factory=dict[str, Any])


class FetchPage(Protocol):
    """A polite fetcher of pages; every failure is a `WorkError`."""

    def page(self, url: str) -> Awaitable[PageAnalysis]:
        """Fetch and analyze a page."""
        ...

    def data(self, url: str) -> Awaitable[object]:
        """Fetch an API response."""
        ...


def spread_sample(items: Sequence[str], count: int) -> list[str]:
    """Return at most `count` of the items, evenly spread over the list."""
    if len(items) <= count:
        return list(items)
    step = len(items) / count
    return [items[int(index * step)] for index in range(count)]


CURE = (
    "write config.recipe by hand, or set OPENAI_API_KEY or OPENAI_BASE_URL so that a model can be"
    " asked, and detect again with `ingest sources update ID --detect`"
)

LEAST_ROUTES = 3
_OTHER_WAYS = (
    "give the source the addresses that the page's script asks for its data (of Kuali"
    " https://HOST/api/v1/catalog/courses/CATALOG for the list and .../course/CATALOG/COURSE for"
    " each course, which are read without a model), with page_type DETAIL in config.recipe; or"
    " another view of the catalogue whose links have no #, with `render: true` in config.recipe"
)


def script_only_reason(page: PageAnalysis) -> str | None:
    """Explain why a page that depends on its script cannot be followed, and the cure; else None."""
    if len(page.routes) >= LEAST_ROUTES:
        return (
            f"{len(page.routes)} links of {page.url} are routes within the page, such as"
            f" {page.routes[0]}: to a server they are all one address, so that none of them can be"
            f" fetched. The cure: {_OTHER_WAYS}"
        )
    if page.is_shell and not page.is_rendered:
        return (
            f"{page.url} shows nothing before its script has run. The cure: write config.recipe by"
            f" hand, with `render: true`; or {_OTHER_WAYS}"
        )
    return None


PROVING_PAGES = 3  # categories that a recipe is tested on, beyond those that it was made from


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkCoverage:
    """The links of a page that look like links to records, and which of them are left out."""

    page: PageAnalysis
    alike: int
    left_out: tuple[Anchor, ...]

    @property
    def is_small(self) -> bool:
        """Whether most of the links are left out."""
        return len(self.left_out) * 2 > self.alike

    def __str__(self) -> str:
        """Return the numbers as text for people."""
        return (
            f"{self.page.url} has {self.alike} links such as {self.left_out[0].url}, and the recipe"
            f" follows {self.alike - len(self.left_out)} of them"
        )


def matching_links(page: PageAnalysis, pattern: str | None) -> list[str]:
    """Return the links of the page that a recipe's pattern follows; none without a pattern."""
    if pattern is None:
        return []
    return matched_links(page.link_markdown, LinkPattern(pattern), page.url)


def link_coverages(pages: Sequence[PageAnalysis], pattern: str | None) -> list[LinkCoverage]:
    """Return the link coverage of each page by this pattern, if it has record-like links.

    Where the followed links have the words of courses, links with such words count as record-like;
    else the links of each page's own best shape do. A page of records need not lead on.
    """
    followed = {page.url: set(map(identity, matching_links(page, pattern))) for page in pages}
    words = [
        anchor.names_course for page in pages for anchor in page.anchors if identity(anchor.url) in followed[page.url]
    ]
    has_words = not words or sum(words) / len(words) >= COURSE_SHARE
    results: list[LinkCoverage] = []
    for page in pages:
        if not followed[page.url] and page.records is not None and page.records.count:
            continue
        if alike := _similar_links(page, has_words=has_words):
            left_out = tuple(link for link in alike if identity(link.url) not in followed[page.url])
            results.append(LinkCoverage(page=page, alike=len(alike), left_out=left_out))
    return results


def _similar_links(page: PageAnalysis, *, has_words: bool) -> list[Anchor]:
    """Return the page's links that look like links to records."""
    if has_words:
        return [link for link in usable_anchors(page) if link.names_course and not link.is_aside]
    best = next(iter(purpose_of(page).clusters), None)
    if best is None or len(best.anchors) < MANY_LINKS or best.aside_share >= COURSE_SHARE:
        return []
    return list(best.anchors)


def unfollowed_links(page: PageAnalysis, pattern: str | None) -> list[str]:
    """Return the links in the page's content that this pattern does not follow."""
    followed = set(map(identity, matching_links(page, pattern)))
    links = (link for link in usable_anchors(page) if link.text and not link.is_aside)
    return [link.url for link in links if identity(link.url) not in followed]


TRIED_SHAPES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class _Level:
    """Sibling pages of one depth; `above` are the link targets of the pages that led to them."""

    pages: Sequence[PageAnalysis]
    depth: int = 0
    above: frozenset[str] = frozenset()
    tried: list[str] = field(default_factory=list[str])  # why links were not followed

    @property
    def name(self) -> str:
        """The name of the level for messages."""
        return "the page" if self.depth == 0 else f"level {self.depth + 1}"

    @property
    def targets(self) -> frozenset[str]:
        """The link targets of its pages and of those above: what pages below share with them is a menu."""
        return self.above.union(*(page.targets for page in self.pages))

    def below(self, pages: Sequence[PageAnalysis]) -> "_Level":
        """Return the level of the pages that its links lead to."""
        return _Level(pages=pages, depth=self.depth + 1, above=self.targets)


@dataclass(slots=True)
class RecipeDetector:
    """The detection of one catalogue's recipe; `log` records the decisions as evidence."""

    fetcher: FetchPage
    limits: DetectionLimits = field(default_factory=DetectionLimits)
    entity: str = "course"
    api_base: str = API_BASE
    voters: ModelVoters | None = None
    log: list[str] = field(default_factory=list[str])
    platform: CatalogPlatform | None = None
    pages: dict[str, PageAnalysis] = field(default_factory=dict[str, PageAnalysis])
    samples: set[str] = field(default_factory=set[str])  # pages to fetch besides the random ones
    categories: set[str] = field(default_factory=set[str])  # of the first page, in other folders
    first_pattern: str | None = None  # of the first page's links, before other categories were found

    async def detect(self, url: str) -> FoundRecipe:
        """Return the recipe of the catalogue at `url`.

        Raises:
            NotDetected: with what was seen, and the cure.
            WorkError: the page, or an API that it names, could not be fetched.
        """
        root = await self._page(url)
        self.platform = platform_of(root)
        if self.platform is not None:
            self.log.append(f"built with {self.platform.name}")
        recipe = await self._by_api(root) or await self._proved(root)
        if root.is_rendered:
            recipe = recipe | {"render": True}
        try:
            level: Recipe | None = recipe_of({"recipe": recipe})
        except BadRecipe as error:
            raise NotDetected(f"the detected recipe is not valid: {error}; {CURE}") from None
        page_types: list[str] = []
        while level is not None:
            page_types.append(level.page_type)
            level = level.links
        return FoundRecipe(
            recipe=recipe,
            message=f"{' > '.join(page_types)}; {'; '.join(self.log)}"[:2_000],
            evidence={"platform": self.platform.name if self.platform else None, "decided": list(self.log)},
        )

    async def _page(self, url: str) -> PageAnalysis:
        """Return the analyzed page; each is fetched once."""
        if url not in self.pages:
            self.pages[url] = await self.fetcher.page(url)
        return self.pages[url]

    async def _by_api(self, root: PageAnalysis) -> dict[str, Any] | None:
        """Return an API recipe if the platform's API lists catalogues of a school that the page names."""
        if self.platform is None or self.platform.name != COURSEDOG or self.entity != "course":
            return None
        for school_id in school_ids(self.platform, root.html):
            try:
                answer = await self.fetcher.data(catalogs_url(school_id, api_base=self.api_base))
            except Permanent as error:  # no such school: another id may be the right one
                self.log.append(f"no catalogues of {school_id}: {error.text[:200]}")
                continue
            if catalogs := catalog_ids(answer):
                self.log.append(f"its API lists {len(catalogs)} catalogues of {school_id}")
                api = {"provider": COURSEDOG, "school_id": school_id, "catalog_ids": list(catalogs)}
                own = {} if self.api_base == API_BASE else {"api_base": self.api_base}
                return {"page_type": PageType.API_REQUEST.value, "api": api | own}
        self.log.append("its API lists no catalogue; read as pages")
        return None

    # --- the proof on further pages

    async def _proved(self, root: PageAnalysis) -> dict[str, Any]:
        """Return a recipe that follows most of the links that its pages list.

        If the first recipe leaves pages out, a second is made with these among its samples; if that
        one leaves out most of them too, detection fails.
        """
        before = len(self.log)
        recipe = await self._level(_Level(pages=[root]))
        self.first_pattern = recipe.get("link_pattern")
        for _ in range(PROVING_PAGES):
            categories = set(await self._left_categories(root, recipe))
            if categories <= self.categories:
                break
            del self.log[before:]
            self.categories |= categories
            recipe = await self._level(_Level(pages=[root]))
        self._check_categories(root, recipe, await self._left_categories(root, recipe))
        problems = await self._left_out(root, recipe)
        if problems:
            del self.log[before:]
            self.samples |= {problem.page.url for problem in problems}
            recipe = await self._level(_Level(pages=[root]))
            problems = await self._left_out(root, recipe)
        if problems:
            numbers = "; ".join(str(problem) for problem in problems[:PROVING_PAGES])
            raise NotDetected(
                f"the recipe that was found leaves out most of the catalogue: {numbers}; {CURE}", code="left_out"
            )
        return recipe

    async def _left_categories(self, root: PageAnalysis, recipe: Mapping[str, Any]) -> list[str]:
        """Return links of the first page that the recipe leaves out, and that are categories."""
        expected = _inner(recipe).get("page_type")
        kinds = (PageType.DETAIL_LINKS.value, PageType.DETAIL.value)
        if recipe["page_type"] != PageType.CATEGORY_LINKS.value or expected not in kinds:
            return []
        categories: list[str] = []
        for url in spread_sample(unfollowed_links(root, recipe.get("link_pattern")), PROVING_PAGES):
            with suppress(Permanent):
                page = (await self._page(url)).without(root.targets)
                if await self._is_category(page, PageType(expected)):
                    categories.append(url)
        return categories

    async def _is_category(self, page: PageAnalysis, expected: PageType) -> bool:
        """Whether the page is of this type; if no link names a course, a linked page decides."""
        kind = purpose_of(page)
        if kind.page_type is not None or expected is PageType.DETAIL or not kind.leads_on:
            return kind.page_type is expected
        linked = await self._page(kind.clusters[0].anchors[0].url)
        return purpose_of(linked.without(page.targets)).page_type is PageType.DETAIL

    def _check_categories(self, root: PageAnalysis, recipe: Mapping[str, Any], categories: Sequence[str]) -> None:
        """Raise if categories in other folders are left out, and more links than are followed."""
        if not categories:
            return
        pattern = recipe.get("link_pattern")
        left, followed = unfollowed_links(root, pattern), matching_links(root, pattern)
        message = f"{root.url} has {len(followed)} links that the recipe follows, and {len(left)} others,"
        message += f" such as the category {categories[0]}"
        if len(left) > len(followed):
            raise NotDetected(f"categories are left out: {message}; {CURE}", code="left_out")
        self.log.append(message)

    async def _left_out(self, root: PageAnalysis, recipe: Mapping[str, Any]) -> list[LinkCoverage]:
        """Return the pages most of whose record-like links the recipe leaves out, by level."""
        level, rule = _Level(pages=[root]), recipe
        while rule:
            pattern = rule.get("link_pattern")
            covered = link_coverages(level.pages, pattern)
            small = [part for part in covered if part.is_small and await self._is_loss(part, rule)]
            if small:
                return small
            if len(level.pages) > 1 and covered:
                alike = sum(part.alike for part in covered)
                followed = alike - sum(len(part.left_out) for part in covered)
                self.log.append(f"{level.name} follows {followed} of {alike} such links")
            links = list(dict.fromkeys(url for page in level.pages for url in matching_links(page, pattern)))
            if not links or rule["page_type"] != PageType.CATEGORY_LINKS.value:
                break
            targets = level.targets
            level = level.below([page.without(targets) for page in await self._proving(links)])
            rule = _inner(rule)
        return []

    async def _is_loss(self, coverage: LinkCoverage, rule: Mapping[str, Any]) -> bool:
        """Whether an omitted link leads to the same kind of page as the followed ones."""
        leads_to_details = _inner(rule).get("page_type", PageType.DETAIL) == PageType.DETAIL
        for anchor in coverage.left_out[:2]:
            with suppress(Permanent):
                kind = purpose_of(await self._page(anchor.url))
                if kind.page_type is PageType.DETAIL if leads_to_details else kind.leads_on:
                    return True
        return False

    async def _proving(self, links: Sequence[str]) -> list[PageAnalysis]:
        """Return the pages of these links that were fetched already, and a few new ones."""
        fresh = [url for url in links if url not in self.pages]
        pages = [self.pages[url] for url in links if url in self.pages]
        for url in spread_sample(fresh, PROVING_PAGES):
            try:
                pages.append(await self._page(url))
            except Permanent as error:
                self.log.append(f"{url} could not be fetched: {error.text[:200]}")
        return pages

    # --- levels by rules

    async def _level(self, level: _Level) -> dict[str, Any]:
        """Return the recipe of the level and those below; its first page decides its type."""
        page = level.pages[0]
        purpose = purpose_of(*level.pages)
        if purpose.page_type is PageType.DETAIL:
            return await self._detail(level, purpose.why)
        if level.depth > self.limits.category_levels:
            raise NotDetected(
                f"lists lead to lists more than {self.limits.category_levels} levels deep, the last at {page.url};"
                " write config.recipe by hand"
            )
        # Without rules for the entity, no fetched page could confirm a shape.
        shapes = self._candidates(level.pages, purpose) if page.records is not None else []
        for cluster in shapes[:TRIED_SHAPES]:
            recipe = await self._followed(level, cluster, purpose)
            if recipe is not None:
                return recipe
        if page.records is not None and page.records.complete:
            return await self._detail(level, "its links hold no more than it does")
        if reason := script_only_reason(page):
            raise NotDetected(reason, code="by_script")
        if self.voters is None:
            also = "".join(f"; {reason}" for reason in level.tried[:4])
            also += "; and records that no rules read, of this type" if page.records is None else ""
            seen = f"{level.name} {page.url} has {purpose.why}"
            raise NotDetected(f"rules cannot decide how to read it: {seen}{also}. The cure: {CURE}", code="unsure")
        return await self._voted(level, purpose, self.voters)

    async def _detail(self, level: _Level, why: str) -> dict[str, Any]:
        self.log.append(f"{level.name} is DETAIL: {why}")
        return {"page_type": PageType.DETAIL.value, **await self._list(level)}

    def _candidates(self, pages: Sequence[PageAnalysis], purpose: PagePurpose) -> list[Cluster]:
        """Return the platform's own link shapes, then the ranked shapes; each set of links once."""
        own = [] if self.platform is None else platform_clusters(self.platform, pages)
        shapes = [*own, *purpose.clusters]
        if shapes and pages[0].targets.intersection(map(identity, self.categories)):
            first = next((cluster for cluster in shapes if cluster.pattern == self.first_pattern), shapes[0])
            shapes.insert(0, widen_cluster(first, sorted(self.categories), pages[0]))
        by_links: dict[frozenset[str], Cluster] = {}
        for cluster in shapes:
            by_links.setdefault(frozenset(anchor.url for anchor in cluster.anchors), cluster)
        return list(by_links.values())

    async def _followed(self, level: _Level, cluster: Cluster, purpose: PagePurpose) -> dict[str, Any] | None:
        """Return the level that follows these links; None if they lead nowhere (see `tried`)."""
        links = [anchor.url for anchor in cluster.anchors]
        if not _finds(cluster.pattern, links, level.pages):
            level.tried.append(f"the pattern {cluster.pattern!r} does not find its own links")
            return None
        children = await self._children(level, links)
        kinds = {child.url: purpose_of(child) for child in children}
        details = [child for child in children if kinds[child.url].page_type is PageType.DETAIL]
        lists = [child for child in children if kinds[child.url].leads_on]
        if details and lists:
            level.tried.append(
                f"{cluster} lead to pages of several types: {len(details)} hold records"
                f" (such as {details[0].url}: {kinds[details[0].url].why}), {len(lists)} lead on"
                f" (such as {lists[0].url}: {kinds[lists[0].url].why})"
            )
            return None
        if not details and not lists:
            level.tried.append(f"{cluster} lead to pages without records or links")
            return None
        is_of_courses = purpose.page_type is PageType.DETAIL_LINKS and cluster is purpose.clusters[0]
        if lists and is_of_courses and cluster.course_share > 0:
            level.tried.append(
                f"{cluster} have the words of courses, but lead to pages of links"
                f" ({lists[0].url}: {kinds[lists[0].url].why}); DETAIL_LINKS must lead to DETAIL"
            )
            return None
        if lists:  # a category with a single course is of their kind, too
            lists.sort(key=lambda child: -len(child.anchors))
            lists += [child for child in children if child not in lists and child.anchors]
        return await self._joined(level, cluster, details, lists)

    async def _joined(
        self, level: _Level, cluster: Cluster, details: Sequence[PageAnalysis], lists: Sequence[PageAnalysis]
    ) -> dict[str, Any]:
        """Return the level for the cluster with the level below it."""
        kind, why = PageType.CATEGORY_LINKS, f"{len(lists)} of the fetched ones lead on"
        if details:
            many = max((page.records.count for page in details if page.records), default=0)
            kind = PageType.CATEGORY_LINKS if many > 1 else PageType.DETAIL_LINKS
            why = f"{len(details)} of the fetched ones hold records"
        self.log.append(f"{level.name} is {kind}: {cluster}, {why}")
        if details:
            inner = {"page_type": PageType.DETAIL.value, **await self._list(level.below(details))}
        else:
            inner = await self._level(level.below(lists))
        return {"page_type": kind.value, "link_pattern": cluster.pattern, "links": inner, **await self._list(level)}

    async def _children(self, level: _Level, links: Sequence[str]) -> list[PageAnalysis]:
        """Return some of the linked pages, without links that the pages above them have too."""
        targets = level.targets
        children: list[PageAnalysis] = []
        last: WorkError | None = None
        sampled = [*spread_sample(links, self.limits.samples), *sorted((self.samples | self.categories) & set(links))]
        for url in dict.fromkeys(sampled):
            try:
                children.append((await self._page(url)).without(targets))
            except Permanent as error:
                last = error
                level.tried.append(f"{url} could not be fetched: {error.text[:200]}")
        if not children and last is not None:
            self.log.append(f"no linked page could be fetched: {last.text[:200]}")
        return children

    async def _list(self, level: _Level) -> dict[str, Any]:
        """Return how the pages' list continues; an open end is checked on the last known page.

        URLs and counts of one category are not those of its siblings: below the first page each
        list is followed from page to page.
        """
        page_by_page = {"pagination": dict(PAGE_BY_PAGE)}
        if level.depth > 0:
            if not any(map(find_paging, level.pages)):
                return {}
            self.log.append(f"the lists of {level.name} continue from page to page")
            return page_by_page
        paging = find_paging(level.pages[0])
        if paging is None:
            return {}
        pagination = paging.pagination
        if paging.is_open and paging.last_url is not None:
            further = None
            with suppress(Permanent):
                further = find_paging(await self._page(paging.last_url))
            if further is not None and further.page_count > paging.page_count:
                self.log.append("its list is longer than its first page shows: page by page")
                return page_by_page
        is_chain = "next" in pagination
        how = "its link to the next page" if is_chain else f"{pagination['url_pattern']}, {paging.page_count} pages"
        self.log.append(f"its list continues by {how}")
        return {"pagination": dict(pagination)}

    # --- levels by votes, where rules are not sure

    async def _voted(self, level: _Level, purpose: PagePurpose, voters: ModelVoters) -> dict[str, Any]:
        """Return the level that a model's votes decide on."""
        page = level.pages[0]
        kinds = await voters.page_type(page)
        self.log.append(f"{level.name}: a model's votes on its page type: {kinds}")
        if kinds.winner is None:
            self.log.append("no majority: DETAIL_LINKS is assumed")
        kind = PageType(kinds.winner or PageType.DETAIL_LINKS)
        pagination = await self._list(level)
        if not pagination:
            votes = await voters.pagination(page)
            self.log.append(f"votes on its pagination: {votes}")
            if votes.winner:
                pagination = {"pagination": dict(PAGE_BY_PAGE) if level.depth else json.loads(votes.winner)}
        if kind is PageType.DETAIL:
            return {"page_type": kind.value, **pagination}
        patterns = await voters.link_pattern(page)
        self.log.append(f"votes on its links: {patterns}")
        if patterns.winner is None:
            reason = f"a model's votes on the links of {page.url} have no majority: {patterns}"
            raise NotDetected(f"{reason}; write config.recipe by hand")
        pattern = _for_siblings(patterns.winner, level.pages, purpose.clusters)
        inner = await self._voted_children(level, kind, pattern, voters)
        return {"page_type": kind.value, "link_pattern": pattern, "links": inner, **pagination}

    async def _voted_children(self, level: _Level, kind: PageType, pattern: str, voters: ModelVoters) -> dict[str, Any]:
        """Return the level below a level that was decided by votes."""
        page, before = level.pages[0], len(level.tried)
        links = [url for each in level.pages for url in matching_links(each, pattern)]
        children = await self._children(level, list(dict.fromkeys(links)))
        kinds: dict[str, PageType] = {}
        for child in children:
            page_type = purpose_of(child).page_type or (await voters.page_type(child)).winner
            kinds[child.url] = PageType(page_type or PageType.DETAIL_LINKS)
        page_types = ", ".join(f"{url} {page_type}" for url, page_type in kinds.items())
        if not kinds:
            raise NotDetected(f"none of the links of {page.url} could be fetched: {'; '.join(level.tried[before:])}")
        if len(set(kinds.values())) > 1:
            raise NotDetected(
                f"the links of {page.url} that {pattern!r} finds lead to pages of several types:"
                f" {page_types}; write config.recipe by hand, with a narrower link_pattern",
                code="mixed_pages",
            )
        if PageType.DETAIL in kinds.values():
            return {"page_type": PageType.DETAIL.value, **await self._list(level.below(children))}
        if kind is PageType.DETAIL_LINKS:
            raise NotDetected(
                f"DETAIL_LINKS must lead to DETAIL, but the links of {page.url} lead to others:"
                f" {page_types}; write config.recipe by hand",
                code="mixed_pages",
            )
        return await self._level(level.below(children))


def _inner(rule: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the level of a recipe that the links of this one lead to; empty without one."""
    return rule.get("links") or {}


def _finds(pattern: str, examples: Sequence[str], pages: Sequence[PageAnalysis]) -> bool:
    """Whether the pattern finds most of its examples on the pages that it was made from."""
    try:
        links = {link for page in pages for link in matching_links(page, pattern)}
    except BadPattern:
        return False
    # Links of footers and scripts are not part of the simplified Markdown.
    names = set(map(identity, links))
    present = {url for url in examples if identity(url) in names}
    return bool(links) and present <= links and len(present) * 2 >= len(examples)


def _for_siblings(pattern: str, pages: Sequence[PageAnalysis], clusters: Sequence[Cluster]) -> str:
    """Return the pattern, or the shape of its links if it finds none on a sibling page."""
    links = [set(matching_links(page, pattern)) for page in pages]
    if all(links):
        return pattern
    for cluster in clusters:
        urls = {anchor.url for anchor in cluster.anchors}
        if cluster.reach == 1 and len(links[0] & urls) * 2 >= len(links[0]):
            return cluster.pattern
    return pattern
