"""Recipe detection by rules: page types, platforms and paging; from a first page to a recipe; reasons for refusals."""

import asyncio
import re
from collections.abc import Mapping
from typing import Any

import pytest

from ingestion_pipeline.catalogs.detection.detector import FoundRecipe, RecipeDetector
from ingestion_pipeline.catalogs.detection.model_votes import DetectionLimits, NotDetected
from ingestion_pipeline.catalogs.detection.page_analysis import (
    PageAnalysis,
    analyze_page,
    clusters_of,
    find_paging,
    platform_of,
    purpose_of,
)
from ingestion_pipeline.catalogs.extraction.entity_type import EntityField, EntityType, FieldKind, entity_type
from ingestion_pipeline.catalogs.recipes.next_pages import PageSource, follow_page, steps_of
from ingestion_pipeline.catalogs.recipes.recipe import API_BASE, recipe_of
from ingestion_pipeline.tasks.errors import Permanent
from ingestion_pipeline_tests.catalogs.course_pages import (
    PAGES_WITH_COURSES,
    PAGES_WITHOUT_COURSES,
    expected,
    expected_cases,
    saved_body,
)
from ingestion_pipeline_tests.catalogs.detection import sites
from ingestion_pipeline_tests.catalogs.detection.sites import HOME, CategorizedSite, SavedPages
from ingestion_pipeline_tests.samples import sample

URL = "http://a.test/list"


def analyze(html: str, url: str = URL) -> PageAnalysis:
    return analyze_page(html, url, kind=entity_type("course"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "page_type", "platform"),
    [
        ("banner/gatech_cs_catalog_listing.html", "DETAIL", "banner"),
        ("banner/gatech_cs1332_detail.html", "DETAIL", "banner"),
        ("banner/gatech_subject_select.html", None, "banner"),
        ("banner/gatech_term_select.html", None, None),
        ("courseleaf/odu_courseblock.html", "DETAIL", "courseleaf"),
        ("cleancatalog/atlanticcape_baking_certificate.html", "DETAIL_LINKS", None),
    ],
)
def test_the_type_and_platform_of_a_real_page_are_recognized(
    name: str, page_type: str | None, platform: str | None
) -> None:
    page = analyze(sample(f"courses/{name}").read_text(errors="replace"))
    matched = platform_of(page)

    assert purpose_of(page).page_type == page_type
    assert (matched.name if matched else None) == platform


PAGES = [name for name in PAGES_WITH_COURSES if saved_body(name).lstrip()[:1] not in "{["]
TEASERS = {"smartcatalog"}  # two courses in a line each, which link to their pages


@pytest.mark.parametrize("name", [name for name in PAGES if name not in TEASERS])
def test_a_page_of_courses_is_a_detail_page(name: str) -> None:
    assert purpose_of(analyze(saved_body(name))).page_type == "DETAIL"


@pytest.mark.parametrize("name", PAGES_WITHOUT_COURSES)
def test_a_page_without_courses_is_no_detail_page(name: str) -> None:
    assert purpose_of(analyze(saved_body(name))).page_type != "DETAIL"


def test_a_list_of_courses_without_descriptions_is_a_list_of_links() -> None:
    page = analyze(sites.numbered()["/courses"])

    purpose = purpose_of(page)

    assert purpose.page_type == "DETAIL_LINKS"
    assert {anchor.url for anchor in purpose.clusters[0].anchors} == {
        f"http://a.test/courses/{number}" for number in range(4)
    }


def test_a_menu_ranks_behind_the_content() -> None:
    first = clusters_of(analyze(sites.kuali()["/catalog/courses"]))[0]

    assert all("/catalog/courses/" in anchor.url for anchor in first.anchors)
    assert first.aside_share == 0


@pytest.mark.parametrize(("links", "expected"), expected_cases("pagers"))
def test_paging_is_found_by_the_pager(links: dict[str, str], expected: object) -> None:
    paging = find_paging(analyze(sites.page(sites.pager(links))))

    assert (paging and dict(paging.pagination)) == expected


def detect(pages: SavedPages, path: str, limits: DetectionLimits | None = None, **changes: Any) -> FoundRecipe:
    detector = RecipeDetector(fetcher=pages, limits=limits or DetectionLimits(), **changes)
    return asyncio.run(detector.detect(HOME + path))


def level_types(recipe: Mapping[str, Any]) -> list[str]:
    """Return the page types of the levels, with a plus where a list is paged."""
    mark = "+" if "pagination" in recipe else ""
    inner = recipe.get("links")
    return [f"{recipe['page_type']}{mark}", *(level_types(inner) if inner else [])]


@pytest.mark.parametrize(
    ("site", "path", "levels", "platform"),
    [
        (sites.numbered(), "/courses", ["DETAIL_LINKS+", "DETAIL"], None),
        (sites.by_offset(), "/list", ["DETAIL+"], None),
        (sites.categories(), "/catalog", ["CATEGORY_LINKS", "DETAIL_LINKS", "DETAIL"], None),
        (sites.single(), "/all", ["DETAIL"], None),
        (sites.courseleaf(), "/courses/", ["CATEGORY_LINKS", "DETAIL"], "courseleaf"),
        (sites.acalog(), "/content.php?catoid=7&navoid=771", ["DETAIL_LINKS+", "DETAIL"], "acalog"),
        (sites.banner(), "/prod/bwckctlg.p_display_courses?term=1", ["DETAIL"], "banner"),
        (sites.kuali(), "/catalog/courses", ["DETAIL_LINKS", "DETAIL"], "kuali"),
    ],
    ids=["numbered", "offset", "categories", "single", "courseleaf", "acalog", "banner", "kuali"],
)
def test_a_recipe_is_detected_by_rules(
    site: dict[str, str], path: str, levels: list[str], platform: str | None
) -> None:
    detected = detect(SavedPages(site), path)

    assert level_types(detected.recipe) == levels
    assert detected.evidence["platform"] == platform
    assert detected.message.startswith(levels[0].removesuffix("+"))


def test_a_list_is_numbered_as_its_site_does() -> None:
    by_number = detect(SavedPages(sites.numbered()), "/courses").recipe["pagination"]
    by_offset = detect(SavedPages(sites.by_offset()), "/list").recipe["pagination"]
    by_vendor = detect(SavedPages(sites.acalog()), "/content.php?catoid=7&navoid=771")

    assert by_number == {"url_pattern": f"{HOME}/courses?page={{page_num}}", "total_pages": 3}
    assert by_offset == {"url_pattern": f"{HOME}/list?offset={{offset}}", "total_pages": 3, "limit": 4}
    assert by_vendor.recipe["pagination"]["total_pages"] == 3
    assert "filter%5Bcpage%5D={page_num}" in by_vendor.recipe["pagination"]["url_pattern"]


CATEGORIZED_SITES = {name: CategorizedSite(**fields) for name, fields in expected("categorized_sites").items()}


def crawl_detected(saved_pages: SavedPages, path: str = "/catalog", **changes: Any) -> set[str]:
    """Return the paths of the detail pages that the detected recipe leads to."""
    recipe = recipe_of({"recipe": detect(saved_pages, path, **changes).recipe})
    steps = {step.key: step for step in steps_of(recipe)}
    waiting = [(HOME + path, steps["root"], None)]
    is_detail_by_path: dict[str, bool] = {}
    while waiting:
        url, step, position = waiting.pop(0)
        html = saved_pages.site.get(url.removeprefix(HOME), sites.page("About us"))
        page = PageSource(url=url, body=html.encode(), content_type="text/html", position=position)
        try:
            followed = follow_page(step, page)
        except Permanent:  # a menu page that looks like a category fails alone
            continue
        is_detail_by_path[url.removeprefix(HOME)] = followed.is_detail
        known_urls = {HOME + known_path for known_path in is_detail_by_path} | {to for to, *_ in waiting}
        new = [page for page in followed.pages if page.url not in known_urls]
        waiting += [(followed_page.url, steps[followed_page.step], followed_page.position) for followed_page in new]
    return {path for path, is_detail in is_detail_by_path.items() if is_detail}


@pytest.mark.parametrize("name", CATEGORIZED_SITES)
def test_the_recipe_of_a_categorized_catalog_leads_to_the_courses_of_every_category(name: str) -> None:
    """1c.60: the inner level fits every category, whatever the first one looks like."""
    site = CATEGORIZED_SITES[name]
    pages = SavedPages(site.pages())

    details = crawl_detected(pages)

    if site.holds_records:
        html = "".join(pages.site[path] for path in details)
        missing = {
            sites.heading(at, code)
            for code, size in ((name[:4].upper(), size) for name, size in site.sizes.items())
            for at in range(size)
            if sites.heading(at, code) not in html
        }
        assert not missing
    else:
        assert details == set(site.courses)


def test_categories_whose_links_have_different_shapes_are_all_followed() -> None:
    flat = CategorizedSite(sizes={"biology": 6, "music": 3, "law": 2})
    deep = CategorizedSite(course="/catalog/{name}/units/{slug}", sizes={"art": 5, "dance": 2})
    pages = SavedPages(sites.combined(flat, deep))

    assert crawl_detected(pages) == {*flat.courses, *deep.courses}


def test_categories_outside_the_sample_are_checked_before_a_recipe_is_accepted() -> None:
    """Every third category is sampled; the others have courses of another shape."""
    names = [f"subject-{at:02}" for at in range(15)]
    usual = CategorizedSite(sizes=dict.fromkeys(names[::3], 3))
    other = CategorizedSite(sizes=dict.fromkeys(set(names) - set(names[::3]), 3), course="/units/{name}/all/{slug}")
    links = {f"/catalog/{name}": name.title() for name in names}
    first = {"/catalog": sites.page(sites.anchors(links), title="Subjects")}
    pages = SavedPages(usual.pages() | other.pages() | first)

    assert crawl_detected(pages) == {*usual.courses, *other.courses}


def test_a_recipe_that_misses_most_links_of_a_category_is_refused_with_the_numbers() -> None:
    """Seven categories of seven shapes: no pattern matches all of them."""
    parts = [
        CategorizedSite(course="/" + "x/" * depth + "{name}/c{number}", sizes={name: 3 + depth})
        for depth, name in enumerate(tuple(sites.SIZES))
    ]

    with pytest.raises(NotDetected) as refused:
        detect(SavedPages(sites.combined(*parts)), "/catalog")

    message = str(refused.value)
    assert refused.value.code == "left_out"
    assert re.search(r"/catalog/\w+ has \d+ links such as http://a.test/\S+, and the recipe", message)
    assert "follows 0 of them" in message
    assert "write config.recipe by hand" in message


@pytest.mark.parametrize(
    ("category", "course", "other_category", "other_course", "has_codes"),
    [
        ("/arts/{name}", "/arts/{name}/{number}", "/law/{name}", "/law/{name}/{number}", True),
        ("/c/{name}", "/c/{name}/{slug}", "/c/more/{name}", "/c/more/{name}/{slug}", False),
        ("/list?d={name}", "/course/{slug}", "/dept/{name}/", "/course/{slug}", True),
    ],
    ids=["folders", "depths without codes", "a query and a path"],
)
def test_categories_of_the_first_page_in_other_folders_are_followed_too(
    category: str, course: str, other_category: str, other_course: str, has_codes: bool
) -> None:
    most = CategorizedSite(category=category, course=course, sizes=sites.SIZES, has_codes=has_codes)
    rest = CategorizedSite(
        category=other_category, course=other_course, sizes={"civil": 4, "penal": 3}, has_codes=has_codes
    )

    details = crawl_detected(SavedPages(sites.combined(most, rest)))

    assert details == {*most.courses, *rest.courses}


@pytest.mark.slow
def test_a_recipe_that_misses_most_categories_of_the_first_page_is_refused() -> None:
    """Two categories in one folder, and 40 in a folder each."""
    folders = [letter * depth for letter in ("x/", "y/", "z/", "w/") for depth in range(1, 11)]
    usual = CategorizedSite(sizes={"biology": 4, "music": 3})
    others = [
        CategorizedSite(category=f"/{folder}{{name}}", sizes={f"subject-{at}": 3}) for at, folder in enumerate(folders)
    ]

    with pytest.raises(NotDetected) as refused:
        detect(SavedPages(sites.combined(usual, *others)), "/catalog")

    assert refused.value.code == "left_out"
    assert re.search(r"has \d+ links that the recipe follows, and \d+ others", str(refused.value))


def test_at_least_three_categories_are_fetched_beyond_the_sample() -> None:
    pages = SavedPages(CategorizedSite().pages())

    assert crawl_detected(pages, limits=DetectionLimits(samples=1)) == set(CategorizedSite().courses)

    categories = {url for url in pages.requested_urls if re.fullmatch(r"http://a.test/catalog/\w+", url)}
    assert len(categories) >= 4


def test_courses_that_one_page_lists_under_their_categories_are_all_followed() -> None:
    site = CategorizedSite(sizes={"biology": 30, "music": 2, "law": 1}, course="/{name}/{number}")
    links = {path: html.split("<h1>")[1].split("</h1>")[0] for path, html in site.courses.items()}
    pages = SavedPages(site.courses | {"/catalog": sites.page(sites.anchors(links))})

    assert crawl_detected(pages) == set(site.courses)


def test_no_more_pages_are_fetched_than_the_sample_size() -> None:
    pages = SavedPages(sites.numbered(pages=2, each=30))

    detect(pages, "/courses")

    assert len([url for url in pages.requested_urls if "/courses/" in url]) == 5


def lists_of_lists() -> dict[str, str]:
    site = {"/l": sites.page(sites.anchors({f"/l/{letter}": letter * 5 for letter in "abcd"}))}
    for depth in range(1, 7):
        for letter in "abcd":
            path = f"/l/{'/'.join([letter] * depth)}"
            inner = {f"{path}/{other}": other * 5 for other in "abcd"}
            site[path] = sites.page(sites.anchors(inner))
            site |= {to: sites.page(sites.anchors({f"{to}/{x}": x * 5 for x in "abcd"})) for to in inner}
    return site


UNCERTAIN = sites.page("<form method=post><select><option>CS</select></form>")
ROUTES = sites.page(sites.anchors({f"#/courses?group={name}": name for name in sites.DEPARTMENTS}))
SHELL = "<title>Catalog</title><body><div id=app></div><script src=/catalog.js></script>"


@pytest.mark.parametrize(
    ("site", "path", "code", "parts"),
    [
        (
            sites.mixed(),
            "/x",
            "unsure",
            ["lead to pages of several types", "http://a.test/x/", "write config.recipe by hand"],
        ),
        ({"/": UNCERTAIN}, "/", "unsure", ["a form to be filled in", "OPENAI_API_KEY"]),
        (lists_of_lists(), "/l", "not_detected", ["more than 3 levels deep"]),
        (
            {"/catalog/": ROUTES},
            "/catalog/",
            "by_script",
            ["#/courses?group=Biology", "api/v1/catalog/courses", "render"],
        ),
        ({"/catalog/": SHELL}, "/catalog/", "by_script", ["before its script", "`render: true`"]),
    ],
    ids=[
        "links to pages of several types",
        "an uncertain page without a model",
        "lists of lists beyond three levels",
        "routes known only to a script",
        "a page that is empty without its script",
    ],
)
def test_a_catalog_that_rules_cannot_read_is_refused_with_evidence_and_cure(
    site: dict[str, str], path: str, code: str, parts: list[str]
) -> None:
    with pytest.raises(NotDetected) as refused:
        detect(SavedPages(site), path)

    assert refused.value.code == code
    assert [part for part in parts if part not in str(refused.value)] == []


def test_an_entity_without_rules_needs_a_model() -> None:
    bird = EntityType(name="bird", fields=(EntityField(name="song", kind=FieldKind.TEXT),))
    pages = SavedPages(sites.numbered(), kind=bird)

    with pytest.raises(NotDetected, match="records that no rules read"):
        detect(pages, "/courses", entity="bird")


CATALOGS = f"{API_BASE}/ca/demo_school/catalogs"


def test_a_vendor_api_is_used_once_it_confirms_the_school() -> None:
    pages = SavedPages({"/": sites.coursedog_page()}, {CATALOGS: [{"id": "c1"}, {"id": "c2"}]})

    recipe = detect(pages, "/").recipe

    assert recipe == {
        "page_type": "API_REQUEST",
        "api": {"provider": "coursedog", "school_id": "demo_school", "catalog_ids": ["c1", "c2"]},
    }


SCRIPT = '<script src="https://static.coursedog.com/catalog/app.js"></script>'


@pytest.mark.parametrize(
    "markup",
    [
        '<script>window.__NUXT__={config:{schoolId:"demo_school"}}</script>',
        '<div data-page="{&quot;schoolId&quot;:&quot;demo_school&quot;}"></div>',
        r'<script>self.push("{\"schoolId\":\"demo_school\"}")</script>',
        '<meta name="school-id" content="demo_school">',
        '<link rel="preload" href="https://app.coursedog.com/api/v1/cm/demo_school/theme">',
    ],
    ids=["state", "attribute", "text in a script", "meta", "address"],
)
def test_a_vendor_on_a_custom_domain_is_recognized_by_what_its_page_loads(markup: str) -> None:
    """No DNS lookup: the vendor's scripts are on the page, whatever its address."""
    html = sites.page(f"<p>{sites.description(1)}</p>{SCRIPT}{markup}", title="Catalogue")
    pages = SavedPages({"/": html}, {CATALOGS: [{"id": "c1"}]})

    assert detect(pages, "/").recipe["api"]["school_id"] == "demo_school"


@pytest.mark.parametrize(
    ("api", "entity"),
    [({CATALOGS: []}, "course"), ({}, "course"), ({CATALOGS: [{"id": "c1"}]}, "credential")],
    ids=["no catalog", "no such school", "not courses"],
)
def test_an_api_that_does_not_confirm_the_school_is_not_used(api: dict[str, Any], entity: str) -> None:
    pages = SavedPages({"/": sites.coursedog_page()}, api, entity)

    with pytest.raises(NotDetected):
        detect(pages, "/", entity=entity)


def test_a_list_that_shows_only_its_first_numbers_is_followed_by_next_links() -> None:
    site = sites.numbered(pages=6)
    window = {f"/courses?page={number}": str(number) for number in (1, 2, 3)}
    pager = sites.pager(window | {"/courses?page=2#": "Next"})
    links = {f"/courses/{at}": sites.heading(at) for at in range(4)}
    site["/courses"] = sites.page(sites.anchors(links) + pager, title="Courses")

    recipe = detect(SavedPages(site), "/courses").recipe

    assert recipe["pagination"] == {"next": "rel"}
