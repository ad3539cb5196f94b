"""Answers of APIs and XML files that no shape knows: courses by the names of their parts."""

from __future__ import annotations

import json

import pytest

from ingestion_pipeline.catalogs.extraction.entity_type import entity_type
from ingestion_pipeline.catalogs.extraction.rule_pipeline import read_records

NETS = "Nets are knotted by hand and mended, from the herring net to the trap for eels."

ITEMS = {
    "whole code": {"CourseCode": "HRB120", "Name": "Nets", "Units": 3, "Description": NETS},
    "subject and number": {
        "subject": "HRB",
        "courseNumber": "0120",
        "courseDisplay": "120",
        "courseTitle": "Nets",
        "creditHourLow": 3,
        "creditHours": None,
        "description": NETS,
    },
    "nested subject": {
        "subject": {"code": "HRB"},
        "catalog_nbr": "120",
        "title": "Nets",
        "credits": "3",
        "info": f"<p>{NETS}</p>",
    },
}
XML = f"""<?xml version="1.0"?><ns2:subject xmlns:ns2="urn:x" id="HRB"><courses>
<course id="HRB 120"><parents><term>Fall</term></parents><label>Nets</label>
<description>{NETS}</description><creditHours>1 to 3 hours.</creditHours></course>
<course><subject>HRB</subject><code>130A</code><title>Caulking</title><description>Oakum and tar
are driven into seams.</description><unitsMin>2</unitsMin><unitsMax>4</unitsMax></course>
</courses></ns2:subject>"""


@pytest.mark.parametrize("item", ITEMS.values(), ids=ITEMS)
def test_an_api_that_nobody_knows_is_read_by_the_names_of_its_keys(item: dict[str, object]) -> None:
    records = read_records(entity_type("course"), json.dumps({"data": [item]})).records

    (fields,) = (record.fields for record in records)
    assert str(fields["course_id"]).replace(" ", "") == "HRB120"
    assert (fields["course_name"], fields["course_description"]) == ("Nets", NETS)
    assert fields["course_credits_max"] == 3


def test_a_file_of_xml_is_read_by_the_names_of_its_elements() -> None:
    records = read_records(entity_type("course"), XML).records

    read = [(one.fields["course_id"], one.fields["course_credits_min"]) for one in records]
    assert read == [("HRB 120", 1), ("HRB 130A", 2)]
    assert [one.fields["course_credits_max"] for one in records] == [3, 4]
    assert records[0].fields["course_description"] == NETS


@pytest.mark.parametrize(
    "text",
    [
        json.dumps([{"code": "LMP 120", "name": "Desk lamp", "description": NETS, "price": 3}]),
        json.dumps({"success": True, "totalCount": 0, "data": []}),
        json.dumps([{"id": "JOB 120", "title": "Baker", "description": NETS}]),
        '<?xml version="1.0"?><courses></courses>',
        '<?xml version="1.0"?><!DOCTYPE a [<!ENTITY b "c">]><courses>&b;</courses>',
        '<?xml version="1.0"?><courses><course>',
    ],
    ids=["goods", "no results", "jobs", "an empty file", "an entity", "cut off"],
)
def test_what_holds_no_course_gives_none_and_no_error(text: str) -> None:
    reading = read_records(entity_type("course"), text)

    assert (reading.records, reading.problems) == ([], ())
