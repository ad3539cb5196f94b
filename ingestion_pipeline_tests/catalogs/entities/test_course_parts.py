"""Description, prerequisites and the rest, wherever catalogues put them."""

from __future__ import annotations

import pytest

from ingestion_pipeline.catalogs.extraction.rules.course_parts import read_parts

PROSE = "How programs are written and read."


@pytest.mark.parametrize(
    ("lines", "before"),
    [
        ([PROSE, "Prerequisite: CS 101."], "CS 101."),
        ([f"{PROSE} Prerequisites: CS 101 or consent."], "CS 101 or consent."),
        ([f"Prerequisite: CS 101. {PROSE}"], "CS 101."),
        ([f"{PROSE} Prereq: CS 101. Coreq: CS 102."], "CS 101."),
        ([PROSE, "Prerequisites:", "CS 101 Minimum Grade of C"], "CS 101 Minimum Grade of C"),
        ([PROSE, "Corequisites:", "CS 102"], None),
        ([PROSE, "Prerequisites: None"], None),
        ([PROSE, "Antirequisite: CS 103", "Exclusion: CS 104"], None),
        ([PROSE, "Prerequisite(s): CS 101. Students need a C or better."], "CS 101. Students need a C or better."),
        (["3 Credits", PROSE, "Restrictions: Majors only."], None),
        (["Course Attributes: Core", "Description", PROSE], None),
        (["Fall", "Description:", PROSE, "Typically Offered: Spring"], None),
        ([PROSE, "Campus: North", "Module leader: Dr Quill"], None),
        ([f"(3 cr.) {PROSE}"], None),
        (["Inhalt", PROSE, "Voraussetzungen", "Keine"], None),
    ],
)
def test_only_prerequisites_are_prerequisites_and_only_prose_describes(lines: list[str], before: str | None) -> None:
    parts = read_parts(lines)

    assert parts.text() == PROSE
    assert parts.required_before() == before


def test_what_belongs_to_the_page_is_left_out() -> None:
    parts = read_parts(["Print-Friendly Page (opens a new window)", PROSE, "Back to Top", "Dept/CS"])

    assert parts.text() == PROSE
