from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingestion_pipeline.reading import decode
from ingestion_pipeline.reading.text.decoding import guessed_encoding
from ingestion_pipeline_tests.samples import sample

JAPANESE = "最新のニュースをお届けします。本日の天気は晴れでしょう。"
KOREAN = "이 페이지는 한국어로 작성되었습니다. 오늘의 소식을 전해 드립니다."
SIMPLIFIED = "本课程介绍计算机科学的基本概念和方法，学生需要完成作业。"  # noqa: RUF001
TRADITIONAL = "本課程介紹計算機科學的基本概念和方法，學生需要完成作業。"  # noqa: RUF001
RUSSIAN = "Пример ленты новостей на русском языке"
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
        (WESTERN, "cp1252"),
    ],
)
def test_text_that_declares_nothing_is_read_by_its_bytes(text: str, encoding: str) -> None:
    page = f"<html><title>{text}</title><p class=x>{text}</p>"

    assert decode(page.encode(encoding)) == page


def test_a_declaration_is_believed_before_a_guess() -> None:
    page = "<meta charset=windows-1252><p>" + RUSSIAN

    assert decode(page.encode("cp1251")) == page.encode("cp1251").decode("cp1252")


@pytest.mark.parametrize(
    ("name", "encoding"), [("www.elecom.co.jp", "cp932"), ("www.elecom.co.jp", "euc_jp"), ("readability_qq", "gb18030")]
)
def test_real_pages_are_recognised_without_their_label(name: str, encoding: str) -> None:
    text = sample(f"html_tricky/{name}.html").read_text()

    assert guessed_encoding(text.encode(encoding, errors="ignore")) == encoding


def test_western_texts_are_not_mistaken() -> None:
    """120 descriptions that were once broken by a wrong guess."""
    pairs = json.loads(sample("html_tricky/encoding/rpi_mojibake_pairs.json").read_text())
    bodies = [json.dumps(pair, ensure_ascii=False).encode("cp1252", "ignore") for pair in pairs]

    assert {guessed_encoding(body) for body in bodies} == {None}


@given(st.binary(max_size=300))
def test_any_bytes_are_text_that_a_database_takes(body: bytes) -> None:
    text = decode(body)

    assert "\0" not in text
    assert text.encode().decode() == text
