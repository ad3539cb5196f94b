"""Descriptions as boards send them: markup, plain text, or markup that was escaped on its way."""

from __future__ import annotations

import pytest

from ingestion_pipeline.companies.platforms.fields import description_of


@pytest.mark.parametrize(
    ("sent", "read"),
    [
        ("<p>Pipes &amp; <b>tanks</b></p>", "Pipes & **tanks**"),
        ("&lt;p&gt;Pipes &amp;amp; tanks&lt;/p&gt;", "Pipes & tanks"),
        ("&amp;lt;p&amp;gt;Pipes&amp;lt;/p&amp;gt;", "Pipes"),
        ("Pipes &amp; tanks", "Pipes & tanks"),
        ("<p>Write &lt;b&gt; by hand</p>", "Write <b> by hand"),
        ("", None),
        ("<p> </p>", None),
    ],
)
def test_a_description_is_markdown_however_often_it_was_escaped(sent: str, read: str | None) -> None:
    assert description_of(sent) == read
