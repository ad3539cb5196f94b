"""The rendering options of a source's config, and the errors for invalid ones."""

from typing import Any

import pytest

from ingestion_pipeline.pages.visits.page import Click, ClickDiscovery, RenderingOptions, RenderWait, rendering_of


def test_a_config_without_options_gives_the_defaults() -> None:
    assert rendering_of({"render": True, "links": {}}) == (RenderingOptions(), [])


def test_every_option_is_parsed() -> None:
    config = {
        "setup": [{"click": " #cookies "}, {"wait_seconds": 2}, {"click": ".more"}],
        "load_wait_seconds": 1.5,
        "content_selector": "main",
        "click_discovery": {"selector": "#list", "limit": 10_000, "wait_seconds": 60},
        "screenshot": False,
    }

    assert rendering_of(config) == (
        RenderingOptions(
            setup=(Click(selector="#cookies"), RenderWait(seconds=2), Click(selector=".more")),
            load_wait_seconds=1.5,
            content_selector="main",
            discovery=ClickDiscovery(selector="#list", limit=10_000, wait_seconds=60),
            screenshot=False,
        ),
        [],
    )


def test_a_click_discovery_has_the_limits_of_the_specification() -> None:
    rendering, _ = rendering_of({"click_discovery": {"selector": "#list"}})

    assert rendering is not None
    assert rendering.discovery == ClickDiscovery(selector="#list", limit=300, wait_seconds=30)


@pytest.mark.parametrize(
    ("config", "field"),
    [
        ({"setup": {"click": "a"}}, "setup"),
        ({"setup": [{"click": "a"}] * 101}, "setup"),
        ({"setup": ["a"]}, "setup[0]"),
        ({"setup": [{"click": "a"}, {}]}, "setup[1]"),
        ({"setup": [{"click": "a", "wait_seconds": 1}]}, "setup[0]"),
        ({"setup": [{"hover": "a"}]}, "setup[0]"),
        ({"setup": [{"click": " "}]}, "setup[0].click"),
        ({"setup": [{"click": 7}]}, "setup[0].click"),
        ({"setup": [{"wait_seconds": 0}]}, "setup[0].wait_seconds"),
        ({"setup": [{"wait_seconds": 600.5}]}, "setup[0].wait_seconds"),
        ({"setup": [{"wait_seconds": float("nan")}]}, "setup[0].wait_seconds"),
        ({"setup": [{"wait_seconds": "2"}]}, "setup[0].wait_seconds"),
        ({"setup": [{"wait_seconds": True}]}, "setup[0].wait_seconds"),
        ({"load_wait_seconds": -1}, "load_wait_seconds"),
        ({"load_wait_seconds": 601}, "load_wait_seconds"),
        ({"content_selector": ""}, "content_selector"),
        ({"content_selector": ["main"]}, "content_selector"),
        ({"click_discovery": "#list"}, "click_discovery"),
        ({"click_discovery": {}}, "click_discovery.selector"),
        ({"click_discovery": {"selector": "a", "limit": 0}}, "click_discovery.limit"),
        ({"click_discovery": {"selector": "a", "limit": 10_001}}, "click_discovery.limit"),
        ({"click_discovery": {"selector": "a", "limit": True}}, "click_discovery.limit"),
        ({"click_discovery": {"selector": "a", "wait_seconds": 0}}, "click_discovery.wait_seconds"),
        ({"click_discovery": {"selector": "a", "wait_seconds": 61}}, "click_discovery.wait_seconds"),
        ({"click_discovery": {"selector": "a", "depth": 2}}, "click_discovery.depth"),
        ({"screenshot": "yes"}, "screenshot"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_mistake_is_named_with_its_key(config: dict[str, Any], field: str) -> None:
    rendering, problems = rendering_of(config)

    assert rendering is None
    assert [problem.field for problem in problems] == [field]
    assert len(problems[0].message) > 10


def test_all_mistakes_are_named_at_once() -> None:
    _, problems = rendering_of({"setup": [{}, {"wait_seconds": 0}], "screenshot": 1})

    assert [problem.field for problem in problems] == ["setup[0]", "setup[1].wait_seconds", "screenshot"]
