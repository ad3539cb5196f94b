"""Labels as real sites and files write them: how many are read rightly, and why not the rest."""

from __future__ import annotations

import json
import re
import unicodedata
from decimal import Decimal
from typing import Any

import pytest

from ingestion_pipeline.series import chapter_number
from ingestion_pipeline.sources import recognize_platform
from ingestion_pipeline.urls import canonical_url
from ingestion_pipeline_tests.samples import sample

# Names of comic files that are no chapter labels: how they are read all the same, and why so.
NO_DECIMAL = "an issue that is no decimal number; a chapter has its number without the letters"
FILE_TAG = "a tag of the person who scanned it, which only names of files have"
FILES = {
    "batman #B01 title (DC).cbz": ("1", NO_DECIMAL),
    "Amazing Spider-Man #078.BEY (2022) (Digital) (Zone-Empire).cbr": ("78", NO_DECIMAL),
    "Cory Doctorow's Futuristic Tales of the Here and Now $1$2 3 #0.0.1 (2007).cbz": ("0", NO_DECIMAL),
    "Free Comic Book Day - Avengers.Hulk (2021) (2048px) (db).cbz": ("2048", FILE_TAG),
    "Avengers By Brian Michael Bendis volume 03 (2013) (Digital) (F2) (Kileko-Empire).cbz": ("2", FILE_TAG),
    "Avengers By Brian Michael Bendis v03 (2013) (Digital) (F2) (Kileko-Empire).cbz": ("2", FILE_TAG),
}

# Labels in which more than one number is seen, or one that is no digit: what a reader takes it for.
ONE = (
    "ComicEarthStar ComicFuz ComicRyu Desu DigitalTeam DongManManhua GanGanOnline Hayalistic"
    " HijalaScans HqNow JEnta JManga KanMan MagusManga MangaChan MangaFox MangaFoxFun MangaHereFun"
    " MangaKakalotFun MangaMillion MangaOnlineFun MangaParkPublisher MangaReaderSite MangaZizi"
    " PixivComics ShonenMagazine Tapread TopToon WebNovel"
)
SEEN = dict.fromkeys(ONE.split(), "1") | {
    "AquaManga": "53",
    "AsuraScans": "270",
    "BigComics": "0",  # 1巻: the volume
    "Comix": "66",
    "DreComicPlus": "8",
    "FuryoSociety": "165",
    "GTOTheGreatSite": "177",
    "HastaTeam": "108",
    "HniScanTrad": "517",  # Tome 55
    "InManga": "1074",
    "LupiTeam": "1121",
    "MagKan": "0",  # 第零話
    "MangaDex": "5.5",
    "MangaPoisk": "10",  # Том 1
    "MangaTales": "10",
    "MangaTube": "154.5",
    "MenudoFansub": "43.1",
    "MintManga": "98",
    "NamiComi": "2.3",
    "NekoPost": "7",
    "NiceOppai": "86",
    "NineMangaRU": "308",  # Том 1
    "PelaTeam": "198",
    "PhoenixScansIT": "164",
    "ReadManga": "100",
    "SakuraManga": "121",  # 5-toubun: the title, of which the label gives one of two names
    "SeiManga": "19",
    "Senkuro": "155",  # Том 1
    "SereinScan": "95",
    "Taiyo": "201",
    "TritiniaScans": "108",
    "UchuujinProjects": "5",
    "Usagi": "100",
    "Zebrack": "44",  # 2023年: the year of a magazine
}
NO_WORD = "volume and chapter with nothing but a hyphen between them, as others write a chapter's title"
THOUSANDS = "a comma between thousands; elsewhere it is a decimal point"
SITES = {
    "InManga": ("1.074", THOUSANDS),
    "MintManga": ("8", NO_WORD),
    "ReadManga": ("1", NO_WORD),
    "SeiManga": ("3", NO_WORD),
    "Usagi": ("1", NO_WORD),
}


def comictagger() -> list[dict[str, Any]]:
    return json.loads(sample("manga/chapter_numbers/comictagger_filenames.json").read_text())


def sites() -> list[dict[str, Any]]:
    return json.loads(sample("manga/sites/haruneko_series_and_chapters.json").read_text())


def number(text: str | None) -> Decimal | None:
    return Decimal(text.replace("½", "0.5")) if text else None


def seen(row: dict[str, Any]) -> Decimal | None:
    """The one number that the label shows, else what the table says."""
    shown = re.findall(r"\d+(?:[.,]\d+)*", unicodedata.normalize("NFKC", row["chapter_title"]))
    return number(SEEN.get(row["site"], shown[0] if shown else None))


def test_comic_files_are_read_as_their_vectors_say_but_for_six() -> None:
    vectors = comictagger()

    wrong = {
        vector["filename"]
        for vector in vectors
        if vector["filename"] not in FILES
        and chapter_number(vector["filename"], vector["expected"]["series"]) != number(vector["expected"]["issue"])
    }

    assert wrong == set()
    assert (len(vectors) - len(FILES), len(vectors)) == (59, 65)


def test_a_comic_file_that_is_no_chapter_label_is_read_as_a_label_would_be() -> None:
    read = {
        vector["filename"]: chapter_number(vector["filename"], vector["expected"]["series"])
        for vector in comictagger()
        if vector["filename"] in FILES
    }

    assert read == {name: number(text) for name, (text, _reason) in FILES.items()}


def test_the_labels_of_623_sites_give_the_number_that_is_seen_but_for_five() -> None:
    rows = sites()

    wrong = {
        row["site"]: chapter_number(row["chapter_title"], row["series_title"])
        for row in rows
        if chapter_number(row["chapter_title"], row["series_title"]) != seen(row)
    }

    assert wrong == {site: number(text) for site, (text, _reason) in SITES.items()}
    assert (len(rows) - len(wrong), len(rows)) == (618, 623)
    assert sum(seen(row) is None for row in rows) == 19


def test_addresses_of_real_sites_are_recognised_or_not_and_have_one_spelling() -> None:
    recognised: dict[str, str] = {}
    for row in sites():
        url = canonical_url(row["series_url"])
        assert canonical_url(url) == url
        if platform := recognize_platform(row["series_url"]):
            recognised[row["site"]] = platform.name
            assert platform == recognize_platform(url)

    assert recognised == {"MangaDex": "mangadex"}


@pytest.mark.parametrize(
    ("label", "series_title", "expected"),
    [
        ("第十二話", None, "12"),
        ("第百二十三話", None, "123"),
        ("第二〇話", None, "20"),
        ("الفصل ١٢", None, "12"),
        ("Cap. 10½", None, "10.5"),
        ("#½", None, "0.5"),
        ("12.Bölüm", None, "12"),
        ("12.b", None, "12.2"),
        ("Том 3 Глава 12", None, "12"),
        ("Tập 3 Chương 12", None, "12"),
        ("제3권 12화", None, "12"),
        ("Saison 2 - Épisode 8", None, "8"),
        ("Tome 3", None, "3"),
        ("Vol. 3 (2021)", None, "3"),
        ("Oneshot (2021)", None, None),
        ("3 Wishes #12", None, "12"),
        ("Ch. 12 - Room #3", None, "12"),
        ("game#3 4", None, "3"),
        ("Area 51", "Area 51", None),
        ("Area 51 Chapter 3", "Area 51", "3"),
        ("Level 99 chap 3", "Level 99 (レベル99)", "3"),
        ("86", "86", "86"),
        ("12 Special A", "Special A", "12"),
    ],
)
def test_a_label_is_read_by_rule(label: str, series_title: str | None, expected: str | None) -> None:
    assert chapter_number(label, series_title) == number(expected)
