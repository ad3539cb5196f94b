"""Pages that a browser has shown: short ones are content, and empty ones are not."""

from __future__ import annotations

import pytest

from ingestion_pipeline.pages.visits.page import PageVisit
from ingestion_pipeline.tasks.errors import Permanent
from ingestion_pipeline_tests.fakes import FakeWeb
from ingestion_pipeline_tests.pages.visiting import SHELL, FakeBrowser, new, visited

SHORT = "<h1>BIO 101 Cells</h1><p>What cells are.</p>"


@pytest.mark.parametrize(
    "shown",
    [
        f"<div id=root>{SHORT}</div>",
        f"<div id=root><p>BIO 101 Cells</div>{SHORT}",
        f"<noscript>Please enable JavaScript to see this page.</noscript>{SHORT}",
        f"<div id=app></div><p>This site works without JavaScript, too.</p>{SHORT}",
    ],
    ids=["in its root", "beside its root", "with a hint for others", "with an unused root"],
)
@pytest.mark.parametrize("served", ["a shell", "the same"])
def test_a_short_page_that_a_browser_shows_is_content(web: FakeWeb, shown: str, served: str) -> None:
    html = f"<!doctype html><title>Cells</title>{shown}<script src=/app.js></script>"
    web.routes["/"] = SHELL if served == "a shell" else html

    page = new(visited(web, PageVisit(url=web.url(), render=True), FakeBrowser([html])))

    assert b"What cells are." in page.text


@pytest.mark.parametrize("shown", ["", "<p>Loading...</p>", "<p>Bitte warten</p>", "<p> ... </p>"])
def test_a_page_that_still_loads_in_the_browser_is_an_error(web: FakeWeb, shown: str) -> None:
    html = f"<!doctype html><title>Cells</title><div id=root></div>{shown}<script></script>"
    web.routes["/"] = SHELL

    with pytest.raises(Permanent) as refused:
        visited(web, "/", FakeBrowser([html]))

    assert refused.value.code == "empty_shell"
