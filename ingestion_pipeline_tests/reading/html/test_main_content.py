"""The main content of a page: what a model is sent of it."""

import pytest

from ingestion_pipeline.reading.html.document import Document
from ingestion_pipeline.tasks.errors import Permanent

MENU = "".join(f'<li><a href="/{name}">{name}</a></li>' for name in ("Home", "Jobs", "About", "Contact"))
PAGE = f"""<body><ul>{MENU}</ul><h1>Baker</h1>
<p>We look for a <a href="https://example.com/baker">baker</a> in Kiel, by <a href="/staff/42">Ms. Voss</a>.</p>
<p><a href="/apply">Apply now</a></p><ol><li><a href="tel:+49431">Call</a> 0431 555</li></ol></body>"""


def test_main_content_has_the_words_of_links_and_not_their_addresses() -> None:
    text = Document(PAGE, url="https://example.com/").main_content

    assert "We look for a baker in Kiel, by Ms. Voss." in text
    assert "example.com" not in text


def test_a_menu_is_no_main_content() -> None:
    text = Document(PAGE).main_content

    assert text.startswith("# Baker")


def test_a_link_that_stands_alone_and_a_number_beside_a_link_are_main_content() -> None:
    text = Document(PAGE).main_content

    assert "Apply now" in text
    assert "Call 0431 555" in text


def test_the_element_that_a_page_marks_is_its_main_content() -> None:
    text = "The bakery has been in the old town of Kiel since 1901, and bakes for the whole of the coast. " * 2

    content = Document(f"<body><p>Aside</p><main>{text}</main></body>").main_content

    assert content == text.strip()


@pytest.mark.parametrize("html", ["<main></main><p>words</p>", "<main>a</main><main>b</main>words", "words"])
def test_without_a_single_main_element_the_whole_page_is_used(html: str) -> None:
    assert "words" in Document(html).main_content


@pytest.mark.parametrize(
    ("body", "code"), [("<div>" * 30_000, "too_deep"), ("<select>" + "<option>a</option>" * 60_000, "too_large")]
)
def test_a_page_that_would_hold_up_the_parser_is_refused(body: str, code: str) -> None:
    with pytest.raises(Permanent) as refused:
        Document(f"<html><body>{body}").main_content  # noqa: B018

    assert refused.value.code == code
