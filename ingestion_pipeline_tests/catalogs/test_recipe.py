"""Recipes are parsed, or refused with every problem and its key."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingestion_pipeline.catalogs.recipes.recipe import BadRecipe, Chained, Numbered, PageType, Recipe, recipe_of
from ingestion_pipeline.pages.visits.page import Click, ClickDiscovery, RenderingOptions, RenderWait

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


@pytest.mark.parametrize(("next_link", "selector"), [("rel", None), ("a.older", "a.older")], ids=["rel", "selector"])
def test_next_links_are_found_by_rel_or_by_a_selector(next_link: str, selector: str | None) -> None:
    pagination = {"next": next_link, "max_pages": 7}

    recipe = recipe_of({"recipe": {"page_type": "DETAIL", "pagination": pagination}})

    assert recipe.pagination == Chained(selector=selector, max_pages=7)


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        (None, "recipe: is missing"),
        ([], "recipe: is missing or no mapping"),
        ({}, "recipe.page_type: is missing; there are: DETAIL, DETAIL_LINKS"),
        ({"page_type": "INDEX"}, "recipe.page_type: 'INDEX' is none; there are: DETAIL"),
        ({"page_type": "API_REQUEST"}, "recipe.api: is missing: name provider, school_id"),
        ({"page_type": "DETAIL", "pagetype": 1}, "recipe.pagetype: unknown key"),
        ({"page_type": "DETAIL", "link_selector": "a"}, "DETAIL pages never follow links"),
        ({"page_type": "DETAIL_LINKS"}, "recipe.link_selector: is missing"),
        ({"page_type": "CATEGORY_LINKS", "link_selector": "a"}, "recipe.links: is missing"),
        ({"page_type": "DETAIL_LINKS", "link_selector": "a["}, "'a[' is no CSS selector"),
        (
            {"page_type": "DETAIL_LINKS", "link_pattern": "x(?=y)"},
            "recipe.link_pattern: 'x(?=y)' is no RE2 pattern at character 2",
        ),
        (
            {"page_type": "DETAIL_LINKS", "link_pattern": "courses/["},
            "recipe.link_pattern: 'courses/[' is no RE2 pattern at character 9: missing ]",
        ),
        (
            {"page_type": "DETAIL", "pagination": {"url_pattern": "/p"}},
            "recipe.pagination.url_pattern: must have one {page_num} or one {offset}",
        ),
        (
            {"page_type": "DETAIL", "pagination": {"url_pattern": " ", "total_pages": 2}},
            "recipe.pagination.url_pattern: must be text, not ' '",
        ),
        ({"page_type": "DETAIL", "pagination": {"url_pattern": "/?o={offset}"}}, "recipe.pagination.limit: is missing"),
        ({"page_type": "DETAIL", "pagination": {}}, "name it or next, and not both"),
        (
            {"page_type": "DETAIL", "setup": [{"wait_seconds": 0}]},
            "recipe.setup[0].wait_seconds: must be seconds above 0",
        ),
        ({"page_type": "DETAIL", "render": "yes"}, "must be true or false, not 'yes'"),
        ({"page_type": "SITEMAP", "link_selector": "a"}, "a sitemap is none; remove it"),
        ({"page_type": "SITEMAP", "render": True}, "recipe.render: says how a web page is read"),
        (
            {"page_type": "CATEGORY_LINKS", "link_selector": "a", "links": {"page_type": "SITEMAP"}},
            "recipe.links.page_type: a sitemap is read at the root alone",
        ),
        (
            {"page_type": "DETAIL", "render": False, "setup": [{"click": "#more"}]},
            "recipe.render: setup and click_discovery are done by a browser",
        ),
    ],
)
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
