import codecs
import json
import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingestion_pipeline.reading import clean_text, decode
from ingestion_pipeline.reading.text.plain_text import declared_encoding, encoding_of, guessed_encoding
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


@pytest.mark.parametrize(
    ("name", "title"),
    [
        ("encoding/invalid-prolog.xml", "테스트 피드"),
        ("encoding/iso-8859-1-meta-after-1024.html", "Frédéric"),
        ("encoding/iso-8859-1.html", "Frédéric"),
        ("encoding/iso-8859-1.xml", "Café"),
        ("encoding/koi8r.xml", "Пример RSS ленты"),
        ("encoding/utf8-incorrect-prolog.xml", "테스트 피드"),
        ("encoding/utf8-meta-after-1024.html", "Frédéric"),
        ("encoding/utf8.html", "Café"),
        ("encoding/utf8.xml", "테스트 피드"),
        ("encoding/windows-1252-incorrect-prolog.xml", "Euro €"),
        ("encoding/windows-1252.xml", "Euro €"),
        ("jvndb.jvn.jp.html", "JVNDB-2018-013542 - JVN iPedia - 脆弱性対策情報データベース"),
        ("readability_qq.html", "DeepMind新电脑已可利用记忆自学 人工智能迈上新台阶_科技_腾讯网"),
    ],
)
def test_real_pages_have_the_titles_people_see(name: str, title: str) -> None:
    text = decode(sample(f"html_tricky/{name}").read_bytes())

    match = re.search(r"<title[^>]*>([^<]*)", text)

    assert match is not None
    assert clean_text(match[1]) == title


@pytest.mark.parametrize(
    ("label", "codec"),
    [
        ("ISO-8859-1", "cp1252"),
        ("us-ascii", "cp1252"),
        ("iso88599", "cp1254"),
        ("shift_jis", "cp932"),
        ("x-sjis", "cp932"),
        ("gb2312", "gb18030"),
        ("gb_2312-80", "gb18030"),
        ("big5", "big5hkscs"),
        ("ks_c_5601-1987", "cp949"),
        ("x-euc-jp", "euc_jp"),
        ("iso-8859-8-e", "iso8859-8"),
        ("tis-620", "cp874"),
        ("koi", "koi8-r"),
        ("x-mac-ukrainian", "mac-cyrillic"),
        ("unicode20utf8", "utf-8"),
        ("utf-7", None),
        ("nonsense", None),
    ],
)
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


JAPANESE = "最新のニュースをお届けします。本日の天気は晴れでしょう。"
KOREAN = "이 페이지는 한국어로 작성되었습니다. 오늘의 소식을 전해 드립니다."
SIMPLIFIED = "本课程介绍计算机科学的基本概念和方法，学生需要完成作业。"  # noqa: RUF001
TRADITIONAL = "本課程介紹計算機科學的基本概念和方法，學生需要完成作業。"  # noqa: RUF001
RUSSIAN = "Пример ленты новостей на русском языке"
GREEK = "Καλώς ήρθατε στη σελίδα μας. Σήμερα ο καιρός θα είναι καλός."  # noqa: RUF001
HEBREW = "ברוכים הבאים לאתר שלנו. היום מזג האוויר יהיה נאה בכל הארץ."
ARABIC = "مرحبا بكم في موقعنا. الطقس اليوم جميل في جميع أنحاء البلاد."
THAI = "ยินดีต้อนรับสู่เว็บไซต์ของเรา วันนี้อากาศดีทั่วประเทศ"
TURKISH = "Sitemize hoş geldiniz. Bugün hava ülke genelinde güzel olacak, yarın kar yağışı bekleniyor."  # noqa: RUF001
POLISH = "Witamy na naszej stronie. Dzisiaj pogoda będzie ładna w całym kraju, każdy może przyjść."
WESTERN = "Frédéric déjà vu über Größe mañana São Crème brûlée Été Åse “quoted” – naïve"  # noqa: RUF001


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
