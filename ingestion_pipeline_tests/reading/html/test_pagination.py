from ingestion_pipeline.reading.html.cleaning import parse_html
from ingestion_pipeline.reading.html.links import Clue, following_pages

URL = "https://a.test/courses?page=1"


def further_pages(html: str, url: str = URL) -> list[tuple[str, Clue, int | None, str | None]]:
    pages = following_pages(parse_html(html), url)
    return [(page.url.removeprefix("https://a.test"), page.clue, page.number, page.pattern) for page in pages]


def test_the_surest_clue_comes_first_and_each_page_once() -> None:
    html = (
        "<link rel=next href='?page=2'><div class=pagination><a href='?page=1'>1</a>"
        "<a href='?page=2'>2</a><a href='?page=3'>3</a><a href='?page=2'>Next »</a></div>"
    )
    pattern = "https://a.test/courses?page={page_num}"

    assert further_pages(html) == [
        ("/courses?page=2", Clue.REL_NEXT, 2, pattern),
        ("/courses?page=3", Clue.NUMBERED, 3, pattern),
    ]


def test_an_offset_is_not_a_page_number() -> None:
    html = "<ul class=pager><li><a href='/list?offset=50&sort=a'>2</a></ul>"

    assert further_pages(html) == [
        ("/list?offset=50&sort=a", Clue.NUMBERED, 2, "https://a.test/list?offset={offset}&sort=a")
    ]


def test_numbers_in_paths_and_labels_are_recognized() -> None:
    html = "<a href='/jobs/page/2' aria-label='Page 2'>two</a><a href='/jobs/page/3'>3</a>"
    pattern = "https://a.test/jobs/page/{page_num}"

    assert further_pages(html) == [
        ("/jobs/page/2", Clue.NUMBERED, 2, pattern),
        ("/jobs/page/3", Clue.NUMBERED, 3, pattern),
    ]


def test_a_next_button_without_words_counts_in_a_pager_only() -> None:
    assert further_pages("<nav class='pagination'><a href=/older>›</a></nav>") == [  # noqa: RUF001
        ("/older", Clue.NEXT_TEXT, None, None)
    ]
    assert further_pages("<p><a href=/older>»</a></p>") == []


def test_urls_alone_count_when_several_agree() -> None:
    several = "<a href='/l?p=2'>Fall</a><a href='/l?p=3'>Spring</a>"

    assert [page[1:3] for page in further_pages(several)] == [(Clue.QUERY, 2), (Clue.QUERY, 3)]
    assert further_pages("<a href='/l?p=2'>Fall</a>") == []


def test_a_calendar_another_host_and_the_page_itself_are_not_further_pages() -> None:
    html = (
        "<table class=calendar><td><a href='/day/2'>2</a><td><a href='/day/3'>3</a></table>"
        "<div class=pagination><a href='https://b.test/?page=2'>2</a><a href='?page=1'>1</a></div>"
        "<a href='/x'>Next steps</a>"
    )

    assert further_pages(html) == []
