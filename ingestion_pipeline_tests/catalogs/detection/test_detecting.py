"""From a first page to a recipe: sites of every kind, doubts, and what is said of them."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from typing import Any

import pytest

from ingestion_pipeline.catalogs.detection.detected import FoundRecipe, NotDetected
from ingestion_pipeline.catalogs.detection.detector import RecipeDetector
from ingestion_pipeline.catalogs.extraction.entity_type import EntityField, EntityType, FieldKind
from ingestion_pipeline.catalogs.recipes.coursedog import API_BASE
from ingestion_pipeline.catalogs.recipes.next_pages import follow_page, steps_of
from ingestion_pipeline.catalogs.recipes.page_source import PageSource
from ingestion_pipeline.catalogs.recipes.recipe import recipe_of
from ingestion_pipeline.settings.systems import Detection
from ingestion_pipeline.tasks.errors import Permanent
from ingestion_pipeline_tests.catalogs.detection import sites
from ingestion_pipeline_tests.catalogs.detection.sites import HOME, Categorised, SavedLook


def detect(look: SavedLook, path: str, settings: Detection | None = None, **changes: Any) -> FoundRecipe:
    detective = RecipeDetector(fetcher=look, settings=settings or Detection(), **changes)
    return asyncio.run(detective.detect(HOME + path))


def shape(recipe: Mapping[str, Any]) -> list[str]:
    """The page types of its levels, with a mark where a list goes on."""
    mark = "+" if "pagination" in recipe else ""
    inner = recipe.get("links")
    return [f"{recipe['page_type']}{mark}", *(shape(inner) if inner else [])]


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
def test_a_site_without_a_recipe_is_read_by_rules(
    site: dict[str, str], path: str, levels: list[str], platform: str | None
) -> None:
    found = detect(SavedLook(site), path)

    assert shape(found.recipe) == levels
    assert found.evidence["platform"] == platform
    assert found.message.startswith(levels[0].removesuffix("+"))


def test_a_list_counts_as_its_pages_do() -> None:
    by_number = detect(SavedLook(sites.numbered()), "/courses").recipe["pagination"]
    by_offset = detect(SavedLook(sites.by_offset()), "/list").recipe["pagination"]
    by_vendor = detect(SavedLook(sites.acalog()), "/content.php?catoid=7&navoid=771")

    assert by_number == {"url_pattern": f"{HOME}/courses?page={{page_num}}", "total_pages": 3}
    assert by_offset == {"url_pattern": f"{HOME}/list?offset={{offset}}", "total_pages": 3, "limit": 4}
    assert by_vendor.recipe["pagination"]["total_pages"] == 3
    assert "filter%5Bcpage%5D={page_num}" in by_vendor.recipe["pagination"]["url_pattern"]


CATEGORISED = {
    "numbers below the category": Categorised(),
    "names below the category": Categorised(course="/catalog/{name}/{slug}"),
    "no common folder": Categorised(category="/{name}", course="/{name}/{slug}"),
    "course codes after the category": Categorised(course="/catalog/{name}/{code}-{number}"),
    "absolute links": Categorised(link="{home}{path}"),
    "relative links": Categorised(
        category="/{name}", course="/{name}-{number}.html", link="{last}", turned="{category}-p{page}"
    ),
    "queries": Categorised(
        category="/list.php?dept={code}", course="/course.php?dept={code}&id={number}", turned="{category}&page={page}"
    ),
    "pages in the path": Categorised(turned="{category}/page/{page}"),
    "titles without codes": Categorised(has_codes=False, course="/catalog/{name}/{slug}"),
    "one large category": Categorised(sizes={"biology": 120, "music": 2, "law": 1, "art": 3, "dance": 2}, each=60),
    "one large category without codes": Categorised(
        sizes={"biology": 120, "music": 3, "law": 2, "art": 3, "dance": 2},
        each=120,
        has_codes=False,
        course="/catalog/{name}/{slug}",
    ),
    "records in the categories": Categorised(holds_records=True),
}


def crawled(look: SavedLook, path: str = "/catalog", **changes: Any) -> set[str]:
    """The paths of the pages of records that the detected recipe leads to."""
    recipe = recipe_of({"recipe": detect(look, path, **changes).recipe})
    steps = {step.key: step for step in steps_of(recipe)}
    waiting = [(HOME + path, steps["root"], None)]
    asked: dict[str, bool] = {}
    while waiting:
        url, step, position = waiting.pop(0)
        html = look.site.get(url.removeprefix(HOME), sites.page("About us"))
        page = PageSource(url=url, body=html.encode(), content_type="text/html", position=position)
        try:
            followed = follow_page(step, page)
        except Permanent:  # a page of the menu that looks like a category fails alone
            continue
        asked[url.removeprefix(HOME)] = followed.is_detail
        known = {HOME + one for one in asked} | {to for to, *_ in waiting}
        new = [one for one in followed.pages if one.url not in known]
        waiting += [(one.url, steps[one.step], one.position) for one in new]
    return {path for path, is_detail in asked.items() if is_detail}


@pytest.mark.parametrize("name", CATEGORISED)
def test_the_recipe_of_a_categorised_catalogue_leads_to_the_courses_of_every_category(name: str) -> None:
    """1c.60: the inner level is that of every category, whatever the first one looks like."""
    site = CATEGORISED[name]
    look = SavedLook(site.pages())

    details = crawled(look)

    if site.holds_records:
        shown = "".join(look.site[path] for path in details)
        missing = {
            sites.heading(at, code)
            for code, size in ((name[:4].upper(), size) for name, size in site.sizes.items())
            for at in range(size)
            if sites.heading(at, code) not in shown
        }
        assert not missing
    else:
        assert details == set(site.courses)


def test_categories_whose_links_have_different_shapes_are_all_followed() -> None:
    flat = Categorised(sizes={"biology": 6, "music": 3, "law": 2})
    deep = Categorised(course="/catalog/{name}/units/{slug}", sizes={"art": 5, "dance": 2})
    look = SavedLook(sites.combined(flat, deep))

    assert crawled(look) == {*flat.courses, *deep.courses}


def test_categories_that_no_sample_showed_are_looked_at_before_a_recipe_is_kept() -> None:
    """Every third category is a sample; all others have courses of another shape."""
    names = [f"subject-{at:02}" for at in range(15)]
    usual = Categorised(sizes=dict.fromkeys(names[::3], 3))
    other = Categorised(sizes=dict.fromkeys(set(names) - set(names[::3]), 3), course="/units/{name}/all/{slug}")
    links = {f"/catalog/{name}": name.title() for name in names}
    first = {"/catalog": sites.page(sites.anchors(links), title="Subjects")}
    look = SavedLook(usual.pages() | other.pages() | first)

    assert crawled(look) == {*usual.courses, *other.courses}


def test_a_recipe_that_leaves_out_most_of_a_categorys_links_is_refused_with_the_numbers() -> None:
    """Seven categories of seven shapes: no pattern stands for all of them."""
    parts = [
        Categorised(course="/" + "x/" * depth + "{name}/c{number}", sizes={name: 3 + depth})
        for depth, name in enumerate(tuple(sites.SIZES))
    ]

    with pytest.raises(NotDetected) as refused:
        detect(SavedLook(sites.combined(*parts)), "/catalog")

    said = str(refused.value)
    assert refused.value.code == "left_out"
    assert re.search(r"/catalog/\w+ has \d+ links such as http://a.test/\S+, and the recipe", said)
    assert "follows 0 of them" in said
    assert "write config.recipe by hand" in said


@pytest.mark.parametrize(
    ("category", "course", "other_category", "other_course", "has_codes"),
    [
        ("/arts/{name}", "/arts/{name}/{number}", "/law/{name}", "/law/{name}/{number}", True),
        ("/c/{name}", "/c/{name}/{slug}", "/c/more/{name}", "/c/more/{name}/{slug}", False),
        ("/list?d={name}", "/course/{slug}", "/dept/{name}/", "/course/{slug}", True),
    ],
    ids=["folders", "depths without codes", "a query and a path"],
)
def test_categories_of_the_first_page_that_are_in_other_folders_are_followed_too(
    category: str, course: str, other_category: str, other_course: str, has_codes: bool
) -> None:
    most = Categorised(category=category, course=course, sizes=sites.SIZES, has_codes=has_codes)
    rest = Categorised(
        category=other_category, course=other_course, sizes={"civil": 4, "penal": 3}, has_codes=has_codes
    )

    details = crawled(SavedLook(sites.combined(most, rest)))

    assert details == {*most.courses, *rest.courses}


def test_a_recipe_that_leaves_out_most_categories_of_the_first_page_is_refused() -> None:
    """Two categories in one folder, and 40 that have a folder of their own each."""
    folders = [letter * depth for letter in ("x/", "y/", "z/", "w/") for depth in range(1, 11)]
    usual = Categorised(sizes={"biology": 4, "music": 3})
    others = [
        Categorised(category=f"/{folder}{{name}}", sizes={f"subject-{at}": 3}) for at, folder in enumerate(folders)
    ]

    with pytest.raises(NotDetected) as refused:
        detect(SavedLook(sites.combined(usual, *others)), "/catalog")

    assert refused.value.code == "left_out"
    assert re.search(r"has \d+ links that the recipe follows, and \d+ others", str(refused.value))


def test_at_least_three_categories_are_looked_at_beyond_the_one_sample_of_a_recipe() -> None:
    look = SavedLook(Categorised().pages())

    assert crawled(look, settings=Detection(samples=1)) == set(Categorised().courses)

    categories = {url for url in look.asked if re.fullmatch(r"http://a.test/catalog/\w+", url)}
    assert len(categories) >= 4


def test_courses_that_one_page_lists_under_their_categories_are_all_followed() -> None:
    site = Categorised(sizes={"biology": 30, "music": 2, "law": 1}, course="/{name}/{number}")
    links = {path: html.split("<h1>")[1].split("</h1>")[0] for path, html in site.courses.items()}
    look = SavedLook(site.courses | {"/catalog": sites.page(sites.anchors(links))})

    assert crawled(look) == set(site.courses)


def test_no_more_pages_are_looked_at_than_the_samples_of_a_shape() -> None:
    look = SavedLook(sites.numbered(pages=2, each=30))

    detect(look, "/courses")

    assert len([url for url in look.asked if "/courses/" in url]) == 5


def test_links_that_lead_to_pages_of_several_types_are_an_error_for_people() -> None:
    with pytest.raises(NotDetected) as refused:
        detect(SavedLook(sites.mixed()), "/x")

    said = str(refused.value)
    assert "lead to pages of several types" in said
    assert "http://a.test/x/" in said
    assert "write config.recipe by hand" in said


def test_without_a_model_a_doubt_says_what_was_seen_and_the_cure() -> None:
    site = {"/": sites.page("<form method=post><select><option>CS</select></form>")}

    with pytest.raises(NotDetected) as refused:
        detect(SavedLook(site), "/")

    said = str(refused.value)
    assert refused.value.code == "unsure"
    assert "a form to be filled in" in said
    assert "OPENAI_API_KEY" in said


def test_lists_that_lead_to_lists_end_somewhere() -> None:
    site = {"/l": sites.page(sites.anchors({f"/l/{one}": one * 5 for one in "abcd"}))}
    for depth in range(1, 7):
        for one in "abcd":
            path = f"/l/{'/'.join([one] * depth)}"
            inner = {f"{path}/{other}": other * 5 for other in "abcd"}
            site[path] = sites.page(sites.anchors(inner))
            site |= {to: sites.page(sites.anchors({f"{to}/{x}": x * 5 for x in "abcd"})) for to in inner}

    with pytest.raises(NotDetected, match="more than 3 levels deep"):
        detect(SavedLook(site), "/l")


def test_an_entity_that_no_rules_read_needs_a_model() -> None:
    bird = EntityType(name="bird", fields=(EntityField(name="song", kind=FieldKind.TEXT),))
    look = SavedLook(sites.numbered(), kind=bird)

    with pytest.raises(NotDetected, match="records that no rules read"):
        detect(look, "/courses", entity="bird")


CATALOGS = f"{API_BASE}/ca/demo_school/catalogs"


def test_a_vendor_with_an_api_is_read_by_it_once_the_api_knows_the_school() -> None:
    look = SavedLook({"/": sites.coursedog_page()}, {CATALOGS: [{"id": "c1"}, {"id": "c2"}]})

    recipe = detect(look, "/").recipe

    assert recipe == {
        "page_type": "API_REQUEST",
        "api": {"provider": "coursedog", "school_id": "demo_school", "catalog_ids": ["c1", "c2"]},
    }


SCRIPT = '<script src="https://static.coursedog.com/catalog/app.js"></script>'


@pytest.mark.parametrize(
    "says",
    [
        '<script>window.__NUXT__={config:{schoolId:"demo_school"}}</script>',
        '<div data-page="{&quot;schoolId&quot;:&quot;demo_school&quot;}"></div>',
        r'<script>self.push("{\"schoolId\":\"demo_school\"}")</script>',
        '<meta name="school-id" content="demo_school">',
        '<link rel="preload" href="https://app.coursedog.com/api/v1/cm/demo_school/theme">',
    ],
    ids=["state", "attribute", "text in a script", "meta", "address"],
)
def test_a_catalogue_on_a_domain_of_its_own_is_told_by_what_its_page_loads(says: str) -> None:
    """No name server is asked: the vendor's scripts are on the page, whatever its address is."""
    html = sites.page(f"<p>{sites.described(1)}</p>{SCRIPT}{says}", title="Catalogue")
    look = SavedLook({"/": html}, {CATALOGS: [{"id": "c1"}]})

    assert detect(look, "/").recipe["api"]["school_id"] == "demo_school"


@pytest.mark.parametrize(
    ("api", "entity"),
    [({CATALOGS: []}, "course"), ({}, "course"), ({CATALOGS: [{"id": "c1"}]}, "credential")],
    ids=["no catalogue", "no such school", "not courses"],
)
def test_an_api_that_does_not_confirm_it_is_not_used(api: dict[str, Any], entity: str) -> None:
    look = SavedLook({"/": sites.coursedog_page()}, api, entity)

    with pytest.raises(NotDetected):
        detect(look, "/", entity=entity)


def test_a_list_that_shows_only_its_beginning_is_followed_page_by_page() -> None:
    site = sites.numbered(pages=6)
    window = {f"/courses?page={number}": str(number) for number in (1, 2, 3)}
    shown = sites.pager(window | {"/courses?page=2#": "Next"})
    links = {f"/courses/{one}": sites.heading(one) for one in range(4)}
    site["/courses"] = sites.page(sites.anchors(links) + shown, title="Courses")

    recipe = detect(SavedLook(site), "/courses").recipe

    assert recipe["pagination"] == {"next": "rel"}


def test_routes_that_only_a_script_knows_are_named_with_the_cure() -> None:
    links = {f"#/courses?group={name}": name for name in sites.DEPARTMENTS}

    with pytest.raises(NotDetected, match=r"#/courses\?group=Biology") as told:
        detect(SavedLook({"/catalog/": sites.page(sites.anchors(links))}), "/catalog/")

    assert told.value.code == "by_script"
    assert "api/v1/catalog/courses" in told.value.text
    assert "render" in told.value.text


def test_a_page_that_is_empty_before_its_script_ran_is_said_to_need_a_browser() -> None:
    shell = "<title>Catalog</title><body><div id=app></div><script src=/catalog.js></script>"

    with pytest.raises(NotDetected, match="before its script") as told:
        detect(SavedLook({"/catalog/": shell}), "/catalog/")

    assert told.value.code == "by_script"
    assert "`render: true`" in told.value.text
