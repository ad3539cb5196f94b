"""Pages that state courses as a vendor's layout has them, and what was made of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import update

from ingestion_pipeline.store import Store
from ingestion_pipeline.store.tables import data_items, datasets
from ingestion_pipeline_tests.fakes import FakeWeb
from ingestion_pipeline_tests.pollers import rows


def a_course(number: int, *, about: str = "counting") -> str:
    """One course, in CourseLeaf's layout."""
    return (
        '<div class="courseblock"><p class="courseblocktitle"><strong>'
        f"MATH {number}. Numbers {number}. 3 Credits.</strong></p>"
        f'<p class="courseblockdesc">This course is about {about}, and about {number} ways'
        " to do it well.</p></div>"
    )


def a_course_page(*numbers: int, about: str = "counting") -> str:
    """A page with these courses."""
    courses = "".join(a_course(number, about=about) for number in numbers)
    return f"<html><body><h1>Courses</h1>{courses}</body></html>"


def given_courses(web: FakeWeb, *numbers: int) -> None:
    """A root that links to a page for each course."""
    links = "".join(f'<li><a href="/c/{number}">{number}</a></li>' for number in numbers)
    web.routes |= {"/": f"<html><body><h1>Catalogue</h1><ul>{links}</ul></body></html>"}
    web.routes |= {f"/c/{number}": a_course_page(number) for number in numbers}


def names(store: Store) -> list[str]:
    """The codes of all items, in order."""
    return sorted(row.data["course_id"] for row in rows(store, data_items))


def publish(store: Store, status: str = "published") -> None:
    """What completion does with a dataset that passed its gates."""
    with store.begin() as connection:
        connection.execute(update(datasets).values(status=status))


def dataset_rows(store: Store) -> list[Mapping[str, Any]]:
    return [dict(row._mapping) for row in rows(store, datasets)]
