"""The profile is loaded completely or not at all, and all its mistakes are reported at once."""

from pathlib import Path

from ingestion_pipeline.companies.matching.profile import (
    Allowed,
    BadProfile,
    NoProfile,
    Profile,
    example_profile,
    load_profile,
)
from ingestion_pipeline_tests.companies.cases import FOLDER, tables, with_cases

INVALID_PROFILE = (FOLDER / "invalid_profile.txt").read_text()


def write_profile(folder: Path, text: str) -> Path:
    path = folder / "profile.yaml"
    path.write_text(text)
    return path


def problem_lines(folder: Path, text: str) -> dict[str, int]:
    """Return the line of each mistake by its key."""
    profile = load_profile(write_profile(folder, text))
    assert isinstance(profile, BadProfile)
    return {problem.field: problem.line for problem in profile.problems}


def test_every_mistake_in_a_profile_is_reported_with_its_line(tmp_path: Path) -> None:
    assert problem_lines(tmp_path, INVALID_PROFILE) == tables("profile")["invalid_profile_lines"]


def test_each_mistake_names_the_accepted_values(tmp_path: Path) -> None:
    message = str(load_profile(write_profile(tmp_path, INVALID_PROFILE)))

    assert "profile.yaml:2: skills.Python: 11 is none; write a whole number from 1 to 10" in message
    assert "such as America/Los_Angeles" in message
    assert "none of yes, no, home_city" in message
    assert "favourite_colour: no key of a profile; there are: skills, home_city" in message


@with_cases("text", "key")
def test_a_document_that_is_not_a_profile_is_reported(tmp_path: Path, text: str, key: str) -> None:
    assert key in problem_lines(tmp_path, text)


def test_the_example_profile_is_valid_and_names_every_key(tmp_path: Path) -> None:
    profile = load_profile(write_profile(tmp_path, example_profile()))

    assert isinstance(profile, Profile)
    assert profile.skills["Python"] == 10
    assert profile.work_modes.hybrid is Allowed.HOME_CITY
    assert profile.work_modes.on_site is Allowed.NO
    unnamed = {"commission_phrases"}
    assert all(f"{name}:" in example_profile() for name in Profile.model_fields.keys() - unnamed)


def test_the_mistakes_of_a_map_beside_a_bad_key_are_reported(tmp_path: Path) -> None:
    assert problem_lines(tmp_path, "skills:\n  1: 1\n  Go: 11\nseniority:\n  unwanted: [a]\n  unwanted: [b]\n") == {
        "skills": 1,
        "skills.Go": 3,
        "seniority.unwanted": 5,
    }


def test_a_missing_file_names_the_command_that_creates_it(tmp_path: Path) -> None:
    profile = load_profile(tmp_path / "profile.yaml")

    assert isinstance(profile, NoProfile)
    assert "ingest profile example > profile.yaml" in str(profile)


def test_a_folder_instead_of_a_file_is_an_invalid_profile(tmp_path: Path) -> None:
    assert isinstance(load_profile(tmp_path), BadProfile)


def test_another_profile_has_another_hash(tmp_path: Path) -> None:
    first = load_profile(write_profile(tmp_path, "skills: {Python: 3}"))
    same = load_profile(write_profile(tmp_path, "skills:\n  Python: 3  # still"))
    other = load_profile(write_profile(tmp_path, "skills: {Python: 4}"))

    assert isinstance(first, Profile)
    assert isinstance(same, Profile)
    assert isinstance(other, Profile)
    assert first.hash == same.hash != other.hash
