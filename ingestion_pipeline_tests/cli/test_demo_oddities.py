"""What the demo says of pages that are odd, and were got."""

from __future__ import annotations

from typing import Any

import pytest

from ingestion_pipeline.cli.demo_catalogs import DownloadedPage, unusual_pages

SHIPS = "http://catalog.demo.test/ships"
PLAIN: dict[str, Any] = {"url": SHIPS, "final_url": SHIPS, "elapsed_ms": 9, "encoding": "utf-8"}


@pytest.mark.parametrize(
    ("changes", "kind", "said"),
    [
        ({"final_url": "http://b.test/"}, "redirect", f"{SHIPS} leads to http://b.test/"),
        ({"elapsed_ms": 700}, "slow page", f"{SHIPS} took 0.7 seconds"),
        ({"encoding": "cp932"}, "charset", f"{SHIPS} is encoded in Shift_JIS"),
    ],
)
def test_what_is_odd_about_a_page_is_told(changes: dict[str, Any], kind: str, said: str) -> None:
    [[what, how]] = unusual_pages([DownloadedPage(**PLAIN), DownloadedPage(**PLAIN | changes)])

    assert what == kind
    assert said in str(how)
