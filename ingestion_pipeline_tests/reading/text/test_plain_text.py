"""The text of a body: decoded as it was written, and hashed without the date of the day."""

import codecs
import json
import re
import time
from datetime import date, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingestion_pipeline.reading import clean_text, content_hash, decode
from ingestion_pipeline.reading.text.plain_text import (
    _in_one_spelling,
    _without_the_day,
    declared_encoding,
    encoding_of,
    guessed_encoding,
    without_repeated_blocks,
)
from ingestion_pipeline_tests.reading.tables import table
from ingestion_pipeline_tests.samples import sample

CYRILLIC = "Первая глава"


@pytest.mark.parametrize(
    ("body", "content_type", "text"),
    [
        pytest.param(b"\xef\xbb\xbfcaf\xc3\xa9", "text/html; charset=koi8-r", "café", id="bom-wins"),
        pytest.param("é<a>".encode("utf-16"), None, "é<a>", id="utf16-bom"),
        pytest.param("<rss>é</rss>".encode("utf-16-le"), None, "<rss>é</rss>", id="utf16le"),
        pytest.param("<rss>é</rss>".encode("utf-16-be"), "text/xml", "<rss>é</rss>", id="utf16be"),
        pytest.param(CYRILLIC.encode("cp1251"), 'text/html; charset="windows-1251"', CYRILLIC, id="header"),
        pytest.param(
            b"<meta charset=koi8-r>" + CYRILLIC.encode("cp1251"),
            "text/html;charset=windows-1251",
            "<meta charset=koi8-r>" + CYRILLIC,
            id="header-before-meta",
        ),
        pytest.param(b"caf\xc3\xa9", None, "café", id="utf8-undeclared"),
        pytest.param(b"caf\xe9", None, "café", id="windows-1252-undeclared"),
        pytest.param(b"\x93a\x94", "text/plain; charset=iso-8859-1", "“a”", id="latin1-is-1252"),
        pytest.param(b"caf\xc3\xa9", "text/html; charset=iso-8859-1", "café", id="mislabelled"),
        pytest.param(b"caf\xe9 x", "text/html; charset=utf-8", "café x", id="not-utf8-after-all"),
        pytest.param(b"caf\xc3\xa9", "text/html; charset=utf-16", "café", id="not-utf16"),
        pytest.param("日本語".encode("cp932"), "text/html; charset=x-sjis", "日本語", id="sjis"),
        pytest.param("日本".encode("iso2022_jp"), "text/html; charset=iso-2022-jp", "日本", id="jis"),
        pytest.param(b"a+AGI-", "text/html; charset=utf-7", "a+AGI-", id="utf7-refused"),
        pytest.param(b"abc", "text/html; charset=rot13", "abc", id="rot13-refused"),
        pytest.param("ééé".encode() + b"\xc3", None, "ééé\ufffd", id="cut-in-a-character"),
        pytest.param(b"a\0b", None, "ab", id="nul"),
        pytest.param(b"", None, "", id="empty"),
    ],
)
def test_text_is_decoded_as_it_was_written(body: bytes, content_type: str | None, text: str) -> None:
    assert decode(body, content_type) == text


@given(st.binary(max_size=60), st.none() | st.text(max_size=20))
def test_no_bytes_raise_and_no_text_is_unfit_for_a_database(body: bytes, charset: str | None) -> None:
    text = decode(body, None if charset is None else f"text/html; charset={charset}")

    assert "\0" not in text
    text.encode("utf-8")


@pytest.mark.parametrize(
    "body",
    [b"a" * 4_000_000, b"\xff" * 4_000_000, b'<meta "' * 3_000, b"<meta " + b"= " * 8_000],
    ids=["one-line", "no-text", "open-quotes", "equals"],
)
def test_hostile_bodies_are_decoded_at_once(body: bytes) -> None:
    started = time.thread_time()

    decode(body)

    assert time.thread_time() - started < 1


@pytest.mark.parametrize(("name", "title"), table(__file__, "test_real_pages_have_the_titles_people_see"))
def test_real_pages_have_the_titles_people_see(name: str, title: str) -> None:
    text = decode(sample(f"html_tricky/{name}").read_bytes())

    match = re.search(r"<title[^>]*>([^<]*)", text)

    assert match is not None
    assert clean_text(match[1]) == title


@pytest.mark.parametrize(("label", "codec"), table(__file__, "test_labels_mean_what_browsers_take_them_to_mean"))
def test_labels_mean_what_browsers_take_them_to_mean(label: str, codec: str | None) -> None:
    assert declared_encoding(f'<meta charset="{label}">'.encode()) == codec


def test_declarations_are_found_where_browsers_find_them() -> None:
    """All 81 of html5lib's cases hold today; the floor is there so that none is lost."""
    folder = "html_tricky/encoding/html5lib_tests"
    cases = [c for n in (1, 2) for c in json.loads(sample(f"{folder}{n}.json").read_text())]

    hits = sum(sniffed_encoding(c["data_latin1"]) == name_of(c["expected_encoding"]) for c in cases)

    assert len(cases) == 81
    assert hits >= 81


def sniffed_encoding(data: str) -> str:
    body = data.encode("latin-1")
    if body.startswith(codecs.BOM_UTF8):
        return name_of(encoding_of(body).removesuffix("-sig"))
    return declared_encoding(body) or "cp1252"


def name_of(label: str) -> str:
    return codecs.lookup(label).name


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [("  a \n\t b ", "a b"), ("a\0b", "ab"), ("a\ud800b", "ab"), ("\u00a0", None), ("", None), (None, None)],
    ids=["spaces", "nul", "surrogate", "blank", "empty", "none"],
)
def test_clean_text_is_one_line_or_nothing(text: str | None, cleaned: str | None) -> None:
    assert clean_text(text) == cleaned


# ruff: noqa: RUF001 - the letters of other scripts are meant
JAPANESE = "最新のニュースをお届けします。本日の天気は晴れでしょう。"
KOREAN = "이 페이지는 한국어로 작성되었습니다. 오늘의 소식을 전해 드립니다."
SIMPLIFIED = "本课程介绍计算机科学的基本概念和方法，学生需要完成作业。"
TRADITIONAL = "本課程介紹計算機科學的基本概念和方法，學生需要完成作業。"
RUSSIAN = "Пример ленты новостей на русском языке"
GREEK = "Καλώς ήρθατε στη σελίδα μας. Σήμερα ο καιρός θα είναι καλός."
HEBREW = "ברוכים הבאים לאתר שלנו. היום מזג האוויר יהיה נאה בכל הארץ."
ARABIC = "مرحبا بكم في موقعنا. الطقس اليوم جميل في جميع أنحاء البلاد."
THAI = "ยินดีต้อนรับสู่เว็บไซต์ของเรา วันนี้อากาศดีทั่วประเทศ"
TURKISH = "Sitemize hoş geldiniz. Bugün hava ülke genelinde güzel olacak, yarın kar yağışı bekleniyor."
POLISH = "Witamy na naszej stronie. Dzisiaj pogoda będzie ładna w całym kraju, każdy może przyjść."
WESTERN = "Frédéric déjà vu über Größe mañana São Crème brûlée Été Åse “quoted” – naïve"


@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        (JAPANESE, "cp932"),
        (JAPANESE, "euc_jp"),
        (KOREAN, "cp949"),
        (SIMPLIFIED, "gb18030"),
        (TRADITIONAL, "big5hkscs"),
        (RUSSIAN, "cp1251"),
        (RUSSIAN, "koi8-r"),
        *((GREEK, "cp1253"), (HEBREW, "cp1255"), (ARABIC, "cp1256"), (THAI, "cp874")),
        *((TURKISH, "cp1254"), (POLISH, "cp1250"), (WESTERN, "cp1252")),
    ],
)
def test_text_without_a_declaration_is_decoded_by_its_bytes(text: str, encoding: str) -> None:
    page = f"<html><title>{text}</title><p class=x>{text}</p>"

    assert decode(page.encode(encoding)) == page


def test_a_declaration_is_preferred_to_a_guess() -> None:
    page = "<meta charset=windows-1252><p>" + RUSSIAN

    assert decode(page.encode("cp1251")) == page.encode("cp1251").decode("cp1252")


@pytest.mark.parametrize(
    ("name", "encoding"), [("www.elecom.co.jp", "cp932"), ("www.elecom.co.jp", "euc_jp"), ("readability_qq", "gb18030")]
)
def test_encodings_of_real_pages_are_guessed_without_their_label(name: str, encoding: str) -> None:
    text = sample(f"html_tricky/{name}.html").read_text()

    assert guessed_encoding(text.encode(encoding, errors="ignore")) == encoding


def test_western_texts_are_guessed_correctly() -> None:
    """120 descriptions that were once broken by a wrong guess."""
    pairs = json.loads(sample("html_tricky/encoding/rpi_mojibake_pairs.json").read_text())
    bodies = [json.dumps(pair, ensure_ascii=False).encode("cp1252", "ignore") for pair in pairs]

    assert {guessed_encoding(body) for body in bodies} == {None}


@given(st.binary(max_size=300))
def test_any_bytes_decode_to_text_that_a_database_accepts(body: bytes) -> None:
    text = decode(body)

    assert "\0" not in text
    assert text.encode().decode() == text


SAME = table(__file__, "SAME")
DIFFERENT = table(__file__, "DIFFERENT")


def without_the_day(text: str) -> str:
    return _without_the_day(_in_one_spelling(text)).decode()


@pytest.mark.parametrize(("text", "other_text"), SAME, ids=[text[:20] for text, _ in SAME])
def test_another_day_is_not_a_change(text: str, other_text: str) -> None:
    assert content_hash(text) == content_hash(other_text)


@pytest.mark.parametrize(("text", "other_text"), DIFFERENT, ids=[text[:20] for text, _ in DIFFERENT])
def test_another_fact_is_a_change(text: str, other_text: str) -> None:
    assert content_hash(text) != content_hash(other_text)


MOMENTS = table(__file__, "MOMENTS")


@pytest.mark.parametrize(("text", "other_text"), MOMENTS, ids=[text for text, _ in MOMENTS])
def test_a_timestamp_is_removed_in_every_spelling_and_the_next_line_stays(text: str, other_text: str) -> None:
    assert content_hash(f"{text}\n1200 seats") == content_hash(f"{other_text}\n1200 seats")
    assert content_hash(f"{text}\n1200 seats") != content_hash(f"{text}\n1100 seats")


# Each once had equal hashes, or resembles one that did; `{}` is the fact.
FACTS = table(__file__, "FACTS")


@pytest.mark.parametrize(("page", "text", "other_text"), FACTS)
def test_a_fact_that_resembles_a_date_is_preserved(page: str, text: str, other_text: str) -> None:
    assert content_hash(page.format(text)) != content_hash(page.format(other_text))


def test_the_day_is_removed_where_its_year_may_be_a_number_of_seats() -> None:
    text, other_text = "As of May 1, 2000 seats are left", "As of May 2, 2000 seats are left"

    assert content_hash(text) == content_hash(other_text)


FORMATS = ("%Y-%m-%d", "%d.%m.%Y", "%m/%d/%Y", "%B %d, %Y", "%d %b %Y", "%A, %d %B %Y", "%b %d, %Y")
PHRASES = ("as of {}", "Last updated: {}", "Today is {}", "Page last modified on {}", "Stand: {}")


@given(
    st.dates(date(1990, 1, 1), date(2090, 1, 1)),
    st.dates(date(1990, 1, 1), date(2090, 1, 1)),
    st.sampled_from(FORMATS),
    st.sampled_from(PHRASES),
    st.integers(0, 999),
)
def test_the_hash_ignores_the_day_in_every_spelling(
    first_day: date, other_day: date, form: str, phrase: str, seats: int
) -> None:
    def page(day: date, count: int) -> str:
        return f"{phrase.format(day.strftime(form))}\nSeats: {count}\nDeadline: 2026-05-01"

    assert content_hash(page(first_day, seats)) == content_hash(page(other_day, seats))
    assert content_hash(page(first_day, seats)) != content_hash(page(first_day, seats + 1))


@given(
    st.datetimes(datetime(2000, 1, 1), datetime(2090, 1, 1)),  # noqa: DTZ001
    st.sampled_from(("Apply by {}", "Starts {}", "Deadline: {}", "Due {}", "on {} at noon")),
    st.sampled_from((*FORMATS, "%H:%M", "%Y-%m-%d %H:%M")),
)
def test_a_date_that_is_content_stays(moment: datetime, phrase: str, form: str) -> None:
    line = phrase.format(moment.strftime(form)).lower()

    assert without_the_day(line) == " ".join(line.split())


@given(st.text(max_size=60))
def test_trailing_whitespace_does_not_change_the_hash_and_the_text_never_grows(text: str) -> None:
    once = without_the_day(text)

    assert content_hash(text) == content_hash(text + "\n ")
    assert len(once) <= len(text.lower())


EVIL = [
    *("as of ", "as of 1", "May 1, ", "as of May 1, ", "last updated ", "last updated\n"),
    *("(c) ", "2025 (c) ", "© 20", "2025 © ", "copyright ", "today\n", "as of 10:30:10 -", "1"),
]


@pytest.mark.slow
@pytest.mark.parametrize(
    "evil",
    [
        *[unit * (500_000 // len(unit)) for unit in EVIL],
        "last updated " + "1" * 1_000_000,
        "today is " + "mon " * 250_000,
        "as of " + "1." * 500_000,
    ],
    ids=[*EVIL, "digits", "weekdays", "dots"],
)
def test_hostile_text_is_hashed_in_time(evil: str) -> None:
    started = time.thread_time()

    content_hash(evil)

    assert time.thread_time() - started < 1


def test_lines_in_a_row_that_an_earlier_page_has_are_left_out() -> None:
    menu = "Home\nProducts\nContact"
    pages = [f"{menu}\nWe bake bread.\nPhone:\n0431", f"{menu}\nFounded in 1901.\nPhone:\n0432"]

    first, second = without_repeated_blocks(pages)

    assert first == pages[0]
    assert second == "Founded in 1901.\nPhone:\n0432"
