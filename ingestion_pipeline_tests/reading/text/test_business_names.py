"""Business names without article and legal form."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingestion_pipeline.reading.structured.organizations import bare_name

# ruff: noqa: RUF001 - the letters of other scripts are meant


NAMES = [
    ("Acme", "Acme"),
    ("Acme, Inc.", "Acme"),
    ("Acme Inc", "Acme"),
    ("Acme Holdings PLC", "Acme Holdings"),
    ("The Acme Company, LLC", "Acme Company"),
    ("The Pizza Company", "Pizza Company"),
    ("Ford Motor Company", "Ford Motor"),
    ("Acme GmbH", "Acme"),
    ("Acme GmbH & Co. KG", "Acme"),
    ("Acme AG & Co. KGaA", "Acme"),
    ("Müller UG (haftungsbeschränkt)", "Müller"),
    ("Acme S.A.", "Acme"),
    ("Acme SA", "Acme"),
    ("Acme SARL", "Acme"),
    ("Grupo Acme, S.A.B. de C.V.", "Grupo Acme"),
    ("Acme S.L.U.", "Acme"),
    ("Acme Ltda.", "Acme"),
    ("Acme S.p.A.", "Acme"),
    ("Acme s.r.l.", "Acme"),
    ("Acme B.V.", "Acme"),
    ("Acme NV", "Acme"),
    ("Acme Sp. z o.o.", "Acme"),
    ("Acme s.r.o.", "Acme"),
    ("Acme a.s.", "Acme"),
    ("Acme d.o.o.", "Acme"),
    ("Acme Kft.", "Acme"),
    ("Acme A/S", "Acme"),
    ("Acme ApS", "Acme"),
    ("Acme AS", "Acme"),
    ("Acme AB (publ)", "Acme"),
    ("AB Acme", "Acme"),
    ("Acme Oyj", "Acme"),
    ("Acme Oy", "Acme"),
    ("Acme OÜ", "Acme"),
    ("UAB Acme", "Acme"),
    ("Acme A.Ş.", "Acme"),
    ("Acme Pty Ltd", "Acme"),
    ("Acme Pvt. Ltd.", "Acme"),
    ("Acme Sdn. Bhd.", "Acme"),
    ("PT Acme Tbk", "Acme"),
    ("Acme Co., Ltd.", "Acme"),
    ("株式会社アクメ", "アクメ"),
    ("アクメ株式会社", "アクメ"),
    ("(주)아크메", "아크메"),
    ("阿克米股份有限公司", "阿克米"),
    ("ООО «Ромашка»", "Ромашка"),
    ("ПАО Ромашка", "Ромашка"),
    ("“Acme” GmbH", "Acme"),
    ("Acme®", "Acme"),
    ("Ben & Jerry's", "Ben & Jerry's"),
    ("Atlas", "Atlas"),  # ends like a Norwegian form, and is a word
    ("Canvas", "Canvas"),
    ("As Good As New", "As Good As New"),
    ("Acme Co.", "Acme"),
    ("Acme & Co.", "Acme & Co."),
    ("GmbH", "GmbH"),  # nothing else would be left
    ("The", "The"),
]


@pytest.mark.parametrize(("name", "bare"), NAMES)
def test_a_name_loses_its_article_and_its_legal_form(name: str, bare: str) -> None:
    assert bare_name(name) == bare


@pytest.mark.parametrize(
    ("name", "language", "bare"),
    [
        ("Die Bäckerei", "de", "Bäckerei"),
        ("Die Hard Tools", "en", "Die Hard Tools"),
        ("La Redoute SAS", "fr-FR", "Redoute"),
        ("L'Oréal S.A.", "fr", "L'Oréal"),
        ("Il Sole", "it", "Sole"),
        ("Het Parool", "nl", "Parool"),
        ("La Redoute", None, "La Redoute"),
    ],
)
def test_an_article_is_one_of_its_own_language(name: str, language: str | None, bare: str) -> None:
    assert bare_name(name, language=language) == bare


@given(st.text(max_size=60))
def test_a_bare_name_is_bare_and_never_lost(name: str) -> None:
    bare = bare_name(name)

    assert bool(bare) == bool(bare_name(bare)) or not bare
    assert len(bare) <= max(len(name), 120)
