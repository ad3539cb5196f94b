"""The profile: read whole or not at all, and every mistake of it at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from ingestion_pipeline.companies.matching.profile import (
    Allowed,
    BadProfile,
    NoProfile,
    Profile,
    example_profile,
    load_profile,
)

WRONG = """\
skills:
  Python: 11
  Go: best
home_city: [Portland]
time_zone: Portland
salary_floor: 100k
currency: dollars
seniority:
  wanted: [senior]
  unwanted: senior
  strike: {mid: 1}
work_modes:
  remote: maybe
roles: {backend: 900}
stop:
  domains: ["https://spam.test/"]
  keywords: [yes]
technologies:
  undesired: [PHP]
favourite_colour: blue
home_city: Berlin
"""


def given(folder: Path, text: str) -> Path:
    path = folder / "profile.yaml"
    path.write_text(text)
    return path


def problems(folder: Path, text: str) -> dict[str, int]:
    """The line by the key of each mistake."""
    found = load_profile(given(folder, text))
    assert isinstance(found, BadProfile)
    return {one.key: one.line for one in found.problems}


def test_a_profile_with_mistakes_lists_all_of_them_each_with_its_line(tmp_path: Path) -> None:
    assert problems(tmp_path, WRONG) == {
        "skills.Python": 2,
        "skills.Go": 3,
        "time_zone": 5,
        "salary_floor": 6,
        "currency": 7,
        "seniority.unwanted": 10,
        "seniority.strike": 11,
        "work_modes.remote": 13,
        "roles.backend": 14,
        "stop.domains": 16,
        "stop.keywords": 17,
        "technologies.undesired": 19,
        "favourite_colour": 20,
        "home_city": 4,
    }


def test_each_mistake_names_what_is_accepted(tmp_path: Path) -> None:
    said = str(load_profile(given(tmp_path, WRONG)))

    assert "profile.yaml:2: skills.Python: 11 is none; write a whole number from 1 to 10" in said
    assert "such as America/Los_Angeles" in said
    assert "none of yes, no, home_city" in said
    assert "favourite_colour: no key of a profile; there are: skills, home_city" in said


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("skills: {a: 1", "yaml"),
        ("- Python", "file"),
        ("", "file"),
        ("home_city: Portland", "skills"),
        ("skills: &a {Python: 1}\nroles: *a", "yaml"),
        ("seniority: senior\nskills: {Go: 1}", "seniority"),
        ("skills: {1: 1}", "skills"),
    ],
)
def test_what_is_no_profile_says_so(tmp_path: Path, text: str, key: str) -> None:
    assert key in problems(tmp_path, text)


def test_the_example_is_in_order_and_names_every_key(tmp_path: Path) -> None:
    found = load_profile(given(tmp_path, example_profile()))

    assert isinstance(found, Profile)
    assert found.skills["Python"] == 10
    assert found.work_modes.hybrid is Allowed.HOME_CITY
    assert found.work_modes.on_site is Allowed.NO
    unnamed = {"commission_phrases"}
    assert all(f"{name}:" in example_profile() for name in Profile.__dataclass_fields__.keys() - unnamed)


def test_without_a_file_the_cure_is_named(tmp_path: Path) -> None:
    found = load_profile(tmp_path / "profile.yaml")

    assert isinstance(found, NoProfile)
    assert "ingest profile example > profile.yaml" in str(found)


def test_a_folder_in_its_place_is_a_mistake_and_no_crash(tmp_path: Path) -> None:
    assert isinstance(load_profile(tmp_path), BadProfile)


def test_another_wish_is_another_hash(tmp_path: Path) -> None:
    one = load_profile(given(tmp_path, "skills: {Python: 3}"))
    same = load_profile(given(tmp_path, "skills:\n  Python: 3  # still"))
    other = load_profile(given(tmp_path, "skills: {Python: 4}"))

    assert isinstance(one, Profile)
    assert isinstance(same, Profile)
    assert isinstance(other, Profile)
    assert one.hash == same.hash != other.hash
