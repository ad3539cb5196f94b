"""Recipes: parsed, or refused with every problem; which pages follow from a page by links, lists, APIs and patterns."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingestion_pipeline.catalogs.recipes.next_pages import Followed, PageSource, Step, follow_page, identity, steps_of
from ingestion_pipeline.catalogs.recipes.patterns import LinkPattern, matched_links, simplified_markdown
from ingestion_pipeline.catalogs.recipes.recipe import BadRecipe, Chained, Numbered, PageType, Recipe, recipe_of
from ingestion_pipeline.pages.visits.page import Click, ClickDiscovery, RenderingOptions, RenderWait
from ingestion_pipeline.reading.html.document import Document
from ingestion_pipeline.reading.html.links import failure_notice
from ingestion_pipeline.tasks.errors import Permanent, WorkError
from ingestion_pipeline_tests.catalogs.course_pages import expected_cases
from ingestion_pipeline_tests.samples import sample

FULL_RECIPE = {
    "page_type": "CATEGORY_LINKS",
    "link_selector": "ul.departments a",
    "load_wait_seconds": 2,
    "links": {
        "page_type": "DETAIL_LINKS",
        "link_pattern": "/courses/[0-9]+",
        "exact_link_match": True,
        "pagination": {"url_pattern": "?from={offset}&n={limit}", "total_pages": 4, "limit": 20},
        "links": {"page_type": "DETAIL", "content_selector": "#main", "render": True},
    },
}


def recipe_problems(recipe: object) -> list[str]:
    with pytest.raises(BadRecipe) as raised:
        recipe_of({"recipe": recipe})
    return list(raised.value.problems)


def test_a_recipe_is_read_level_by_level() -> None:
    recipe = recipe_of({"recipe": FULL_RECIPE})

    departments, courses = recipe.links, recipe.links and recipe.links.links
    assert departments is not None
    assert courses is not None
    assert (recipe.page_type, recipe.link_selector) == (PageType.CATEGORY_LINKS, "ul.departments a")
    assert departments.pagination == Numbered(url_pattern="?from={offset}&n={limit}", total_pages=4, limit=20)
    assert departments.link_pattern is not None
    assert departments.link_pattern.is_exact
    assert (courses.page_type, courses.render) == (PageType.DETAIL, True)
    assert courses.rendering == RenderingOptions(load_wait_seconds=2, content_selector="#main")


def test_detail_links_lead_to_detail_pages_by_default() -> None:
    recipe = recipe_of({"recipe": {"page_type": "DETAIL_LINKS", "link_selector": "a"}})

    assert recipe.links == Recipe(page_type=PageType.DETAIL)


def test_the_setup_steps_keep_their_order() -> None:
    steps = [{"click": "#accept"}, {"wait_seconds": 1.5}, {"click": ".more"}]
    discovery = {"selector": "#tree", "limit": 50, "wait_seconds": 5}
    recipe = {"page_type": "DETAIL", "setup": steps, "click_discovery": discovery}

    rendering = recipe_of({"recipe": recipe}).rendering

    clicks = Click(selector="#accept"), RenderWait(seconds=1.5), Click(selector=".more")
    assert rendering.setup == clicks
    assert rendering.discovery == ClickDiscovery(selector="#tree", limit=50, wait_seconds=5)


@pytest.mark.parametrize(
    "options", [{"render": True}, {"setup": [{"click": "#more"}]}, {"click_discovery": {"selector": "#tree"}}]
)
def test_steps_that_only_a_browser_can_do_require_one(options: dict[str, Any]) -> None:
    """Clicks of a recipe without `render` used to be skipped silently."""
    assert recipe_of({"recipe": {"page_type": "DETAIL"} | options}).render


def test_a_recipe_without_browser_steps_requires_none() -> None:
    recipe = {"page_type": "DETAIL", "content_selector": "main", "load_wait_seconds": 2}

    assert not recipe_of({"recipe": recipe}).render
    assert recipe_of({"recipe": {"page_type": "DETAIL", "render": True}}).rendering == RenderingOptions()


@pytest.mark.parametrize(("next_link", "selector"), [("rel", None), ("a.older", "a.older")], ids=["rel", "selector"])
def test_next_links_are_found_by_rel_or_by_a_selector(next_link: str, selector: str | None) -> None:
    pagination = {"next": next_link, "max_pages": 7}

    recipe = recipe_of({"recipe": {"page_type": "DETAIL", "pagination": pagination}})

    assert recipe.pagination == Chained(selector=selector, max_pages=7)


@pytest.mark.parametrize(("recipe", "message"), expected_cases("invalid_recipes"))
def test_an_invalid_recipe_is_refused_with_the_key(recipe: Any, message: str) -> None:
    assert message in "\n".join(recipe_problems(recipe))


def test_every_problem_is_reported_at_once() -> None:
    inner = {"page_type": "DETAIL", "content_selector": "[", "setup": "click"}
    recipe = {"page_type": "CATEGORY_LINKS", "link_pattern": "(", "load_wait_seconds": -1, "links": inner}

    keys = [problem.partition(": ")[0] for problem in recipe_problems(recipe)]

    assert sorted(keys) == [
        "recipe.link_pattern",
        "recipe.links.content_selector",
        "recipe.links.setup",
        "recipe.load_wait_seconds",
    ]


def test_levels_without_end_are_refused() -> None:
    recipe: dict[str, Any] = {"page_type": "DETAIL"}
    for _ in range(9):
        recipe = {"page_type": "CATEGORY_LINKS", "link_selector": "a", "links": recipe}

    assert recipe_problems(recipe) == ["recipe.links.links.links.links.links: a recipe has at most 5 levels; remove it"]


TEXTS = st.text("abx[(?={}<>#. ", max_size=8)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=5,
)
KEYS = st.sampled_from(
    ["page_type", "pagination", "link_selector", "link_pattern", "links", "setup", "load_wait_seconds"]
)


@pytest.mark.slow
@given(st.dictionaries(KEYS, VALUES | st.sampled_from(["DETAIL", "DETAIL_LINKS"])))
def test_no_configuration_is_too_strange_to_be_refused(recipe: dict[str, Any]) -> None:
    try:
        parsed: Recipe | BadRecipe = recipe_of({"recipe": recipe})
    except BadRecipe as error:
        parsed = error

    assert isinstance(parsed, Recipe) or all(problem.startswith("recipe") for problem in parsed.problems)


def test_an_api_is_read_with_its_own_server_and_dates() -> None:
    api = {
        "provider": "coursedog",
        "school_id": "demo",
        "catalog_ids": ["a", "b", "a"],
        "api_base": "http://a.test/api/",
        "effective_from": "2026-01-01",
        "effective_until": "2026-12-31",
    }

    parsed = recipe_of({"recipe": {"page_type": "API_REQUEST", "api": api}}).api

    assert parsed is not None
    assert parsed.catalog_ids == ("a", "b")
    assert parsed.first_url == (
        "http://a.test/api/cm/demo/courses/search/$filters"
        "?catalogId=a&skip=0&limit=20&orderBy=code&effectiveDatesRange=2026-01-01,2026-12-31"
    )


def test_every_problem_of_an_api_is_reported_at_once() -> None:
    api = {"provider": "dog", "school_id": "a/b", "api_base": "ftp://x", "effective_from": "today"}
    recipe = {"page_type": "API_REQUEST", "api": api, "link_pattern": "x", "render": True}

    message = "\n".join(recipe_problems(recipe))

    for part in (
        "recipe.api.provider: 'dog' is none; there are: coursedog",
        "recipe.api.school_id: 'a/b' is no id",
        "recipe.api.catalog_ids: is missing",
        "recipe.api.api_base: ",
        "recipe.api.effective_from: 'today' is no day",
        "recipe.link_pattern: API_REQUEST pages never follow links",
        "recipe.render: says how a web page is read",
    ):
        assert part in message


def test_an_api_is_only_allowed_at_the_root() -> None:
    inner = {"page_type": "API_REQUEST", "api": {"provider": "coursedog"}}
    recipe = {"page_type": "CATEGORY_LINKS", "link_selector": "a", "links": inner}

    assert any("at the root alone" in problem for problem in recipe_problems(recipe))


HOME = "https://a.test/list"
LINKS = {"page_type": "DETAIL_LINKS", "link_pattern": "/c/"}


def step(key: str, **recipe: Any) -> Step:
    steps = {step.key: step for step in steps_of(recipe_of({"recipe": recipe}))}
    return steps[key]


def page(*hrefs: str, url: str = HOME, html: str = "", position: int | None = None) -> PageSource:
    links = "".join(f"<a href='{href}'>x</a>" for href in hrefs)
    return PageSource(url=url, body=f"<body>{links}{html}".encode(), position=position)


def followed_urls(followed: Followed) -> list[tuple[str, str]]:
    return [(page.step, page.url.removeprefix("https://a.test")) for page in followed.pages]


def test_the_steps_are_the_recipes_parts_with_their_parents() -> None:
    pagination = {"next": "rel"}
    inner = {**LINKS, "pagination": pagination}
    recipe = {"page_type": "CATEGORY_LINKS", "link_selector": "a", "links": inner}

    steps = steps_of(recipe_of({"recipe": recipe}))

    assert [(step.key, step.kind.value, step.parent) for step in steps] == [
        ("root", "FETCH_ROOT", None),
        ("root/links", "FETCH_LINKS", "root"),
        ("root/links/pages", "FETCH_PAGINATED", "root/links"),
        ("root/links/links", "FETCH_LINKS", "root/links"),
    ]


def test_an_exploratory_recipe_has_one_step_that_leads_to_itself() -> None:
    steps = steps_of(recipe_of({"recipe": {"page_type": "EXPLORATORY"}}))

    assert [step.key for step in steps] == ["root", "root/links"]
    assert {step.links_key for step in steps} == {"root/links"}


@pytest.mark.parametrize(("recipe", "key", "page_fields", "followed"), expected_cases("followed_links"))
def test_the_links_that_the_recipe_names_are_followed(
    recipe: dict[str, Any], key: str, page_fields: dict[str, Any], followed: list[list[str]]
) -> None:
    source = page(*page_fields.get("hrefs", ()), url=page_fields.get("url", HOME), html=page_fields.get("html", ""))

    result = follow_page(step(key, **recipe), source)

    assert followed_urls(result) == [(step_key, path) for step_key, path in followed]
    is_list = recipe["page_type"] == "DETAIL_LINKS"
    assert not (is_list and result.is_detail)


def test_a_detail_page_never_follows_links() -> None:
    followed = follow_page(step("root/links", **LINKS), page("/c/1", url="https://a.test/c/9"))

    assert followed == Followed(is_detail=True)


NUMBERED = {"url_pattern": "/list?page={page_num}", "total_pages": 3}


def test_numbered_pagination_comes_before_links() -> None:
    followed = follow_page(step("root", **LINKS, pagination=NUMBERED), page("/c/1"))

    pages = [("root/pages", f"/list?page={number}") for number in (1, 2, 3)]
    assert followed_urls(followed) == pages
    assert [page.position for page in followed.pages] == [1, 2, 3]
    assert not followed.is_detail


def test_a_list_that_has_grown_is_followed_to_its_highest_number() -> None:
    followed = follow_page(step("root", **LINKS, pagination=NUMBERED), page("/list?page=12"))

    assert len(followed.pages) == 12


def test_a_list_is_cut_at_its_limit_and_the_rest_is_counted() -> None:
    short = {**NUMBERED, "max_pages": 2}

    followed = follow_page(step("root", **LINKS, pagination=short), page("/list?page=50"))

    assert (len(followed.pages), followed.beyond) == (2, 48)


def test_a_list_by_next_links_stays_on_one_level() -> None:
    recipe = {"page_type": "DETAIL", "pagination": {"next": "rel", "max_pages": 3}}
    html = "<a rel=next href='?page=2'>more</a>"

    first = follow_page(step("root", **recipe), page(html=html))
    second = follow_page(step("root/pages", **recipe), page(html=html, url="https://a.test/", position=2))
    last = follow_page(step("root/pages", **recipe), page(html=html, position=3))

    assert (first.is_detail, first.pages[0].position, first.pages[0].is_sibling) == (True, 2, False)
    assert (second.pages[0].position, second.pages[0].is_sibling) == (3, True)
    assert (last.pages, last.beyond) == ((), 1)


@pytest.mark.parametrize("key", ["root", "root/links"])
def test_a_page_without_links_is_an_error_that_names_the_rule(key: str) -> None:
    recipe = {"page_type": "CATEGORY_LINKS", "link_selector": "a", "links": LINKS}

    with pytest.raises(Permanent, match="nothing to do") as refused:
        follow_page(step(key, **recipe), page())

    assert refused.value.code == "nothing_to_do"


def test_the_last_page_of_a_list_and_an_explored_page_may_be_empty() -> None:
    listed = step("root/pages", **LINKS, pagination=NUMBERED)
    exploring = step("root/links", page_type="EXPLORATORY")

    assert follow_page(listed, page()) == Followed()
    assert follow_page(exploring, page()) == Followed(is_detail=True)


@pytest.mark.parametrize(
    ("html", "message"), [("<p>x", "matches nothing"), ("<div id=m> ", "matches an empty element")]
)
def test_missing_content_is_an_error_and_not_an_empty_page(html: str, message: str) -> None:
    detail = step("root", page_type="DETAIL", content_selector="#m")

    with pytest.raises(Permanent, match=message):
        follow_page(detail, page(html=html))


@pytest.mark.parametrize(
    ("url", "same"),
    [
        ("https://a.test/x/", "https://a.test/x"),
        ("https://a.test/x/?b=1", "https://a.test/x?b=1"),
        ("https://a.test/", "https://a.test"),
        ("https://a.test/X", "https://a.test/X"),
    ],
)
def test_a_trailing_slash_makes_no_other_page(url: str, same: str) -> None:
    assert identity(url) == same
    assert identity(same) == same


HREFS = st.lists(
    st.sampled_from(["/c/1", "/c/1/", "/c/2?utm_x=1", "/c/2", "//a.test/c/1", "/list", "#x", "?page=9"])
    | st.text(max_size=12),
    max_size=12,
)


@pytest.mark.slow
@given(hrefs=HREFS)
def test_each_linked_page_is_followed_once_and_never_the_page_itself(hrefs: list[str]) -> None:
    body = "".join(f'<a href="{href}">x</a>' for href in hrefs if '"' not in href)
    source = PageSource(url=HOME, body=body.encode(errors="replace"))

    followed = follow_page(step("root", page_type="EXPLORATORY", pagination=NUMBERED), source)

    keys = [page.key for page in followed.pages]
    assert len(keys) == len(set(keys))
    assert source.key not in keys


def test_the_stated_length_of_a_list_is_used() -> None:
    shorter = page("/c/1", html="<p>Page 1 of 2</p>")

    followed = follow_page(step("root", **LINKS, pagination=NUMBERED), shorter)

    assert [page.position for page in followed.pages] == [1, 2]


API = {"provider": "coursedog", "school_id": "s", "catalog_ids": ["a", "b"]}


def api_page(text: str, catalog: str = "a", skip: int = 0) -> PageSource:
    api = recipe_of({"recipe": {"page_type": "API_REQUEST", "api": API}}).api
    assert api is not None
    return PageSource(url=api.page_url(catalog, skip), body=text.encode())


def follow_api(text: str, catalog: str = "a", skip: int = 0) -> Followed:
    return follow_page(step("root", page_type="API_REQUEST", api=API), api_page(text, catalog, skip))


def test_the_first_page_of_an_api_leads_to_its_list_and_the_other_lists() -> None:
    followed = follow_api('{"listLength": 45, "data": [{}]}')

    queries = [page.url.partition("?")[2] for page in followed.pages]
    assert queries == [
        "catalogId=a&limit=20&orderBy=code&skip=20",
        "catalogId=a&limit=20&orderBy=code&skip=40",
        "catalogId=b&limit=20&orderBy=code&skip=0",
    ]
    assert {page.step for page in followed.pages} == {"root"}
    assert followed.is_detail


@pytest.mark.parametrize(("catalog", "skip", "count"), [("b", 0, 2), ("a", 20, 0)], ids=["other list", "further page"])
def test_further_pages_of_an_api_stay_in_their_own_list(catalog: str, skip: int, count: int) -> None:
    followed = follow_api('{"listLength": 45, "data": [{}]}', catalog, skip)

    assert len(followed.pages) == count
    assert followed.is_detail


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ('{"listLength": 45, "data": [{', "not_json"),
        ("<html>busy</html>", "not_json"),
        ('{"error": "no"}', "api_shape"),
        ("[]", "api_shape"),
        ('{"listLength": "45", "data": []}', "api_shape"),
        ('{"listLength": 45, "data": []}', "api_empty"),
    ],
)
def test_an_api_answer_that_is_no_list_is_an_error_and_not_an_empty_list(text: str, code: str) -> None:
    with pytest.raises(WorkError) as refused:
        follow_api(text)

    assert refused.value.code == code


def test_an_empty_api_list_is_no_error() -> None:
    assert follow_api('{"listLength": 0, "data": []}', "b").pages == ()


def test_an_api_has_one_step() -> None:
    steps = steps_of(recipe_of({"recipe": {"page_type": "API_REQUEST", "api": API}}))

    assert [(step.key, step.kind.value) for step in steps] == [("root", "FETCH_VIA_API")]


BASE = "https://a.test/dir/list"


def matched_urls(html: str, pattern: str, *, exact: bool = False) -> list[str]:
    markdown = simplified_markdown(Document(f"<body>{html}"))
    return matched_links(markdown, LinkPattern(pattern, is_exact=exact), BASE)


def test_simplified_markdown_has_only_content_with_inline_links() -> None:
    html = (
        "<head><title>T</title><link rel=next href=/n></head><body><!-- /c/1 -->"
        "<script>'/c/2'</script><div></div><iframe src=/c/3></iframe>"
        "<div><div><a href='c/4' class=x title='/c/5' data-to='/c/6'>Four</a></div></div>"
        "<footer><a href=/c/7>Seven</a></footer>"
    )

    assert simplified_markdown(Document(html)) == "[Four](c/4)"


def test_the_same_page_has_the_same_markdown() -> None:
    html = sample("courses/cleancatalog/atlanticcape_baking_certificate.html").read_text()

    first = simplified_markdown(Document(html))

    assert first == simplified_markdown(Document(html))
    assert "[ENGL101](/english/engl101)" in first  # as in the reference beside the sample
    assert "[Culinary Arts](/culinary-arts)" in first


def test_hidden_lists_are_kept() -> None:
    assert matched_urls("<div style='display:none'><a href=/c/1>x</a></div>", "/c/") == ["https://a.test/c/1"]


@pytest.mark.parametrize(("html", "pattern", "urls"), expected_cases("matched_links"))
def test_a_matched_link_is_a_page(html: str, pattern: str, urls: list[str]) -> None:
    assert matched_urls(html, pattern) == urls


def test_an_exact_match_is_the_matched_part_alone() -> None:
    html = "<a href='/dir/dir/c/1/print'>1</a>"

    assert matched_urls(html, r"/dir/c/\d", exact=True) == ["https://a.test/dir/c/1"]


@pytest.mark.parametrize(("text", "expected"), expected_cases("failure_notices"))
def test_a_failure_notice_is_distinguished_from_a_course_about_failures(text: str, expected: str | None) -> None:
    assert failure_notice(text) == expected
