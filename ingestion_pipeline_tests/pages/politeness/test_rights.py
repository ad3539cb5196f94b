"""What sites say about the use of their text by machines, and what follows from it."""

import json
from collections.abc import Mapping

import pytest

from ingestion_pipeline.pages.politeness.rights import (
    allows_models,
    header_rights,
    is_reserved,
    meta_rights,
    site_rights,
    tdm_rules,
)
from ingestion_pipeline.pages.politeness.robots import as_stored, from_stored, rules_of_answer
from ingestion_pipeline_tests.builders import NOON

ROBOTS = b"""User-agent: *
Content-Signal: search=yes, ai-train=no, ai-input=no
Allow: /

User-agent: other
Content-Signal: ai-input=yes
Disallow: /x
"""
TDMREP = [
    {"location": "/open/*", "tdm-reservation": 0},
    {"location": "/*", "tdm-reservation": 1, "tdm-policy": "https://a.test/policy"},
]


@pytest.mark.parametrize(
    ("headers", "body", "expected"),
    [
        ({}, b"<html>noai is a word</html>", (True, True)),
        ({"x-robots-tag": "noindex, nofollow"}, b"", (True, True)),
        ({"x-robots-tag": "noai, noimageai"}, b"", (False, False)),
        ({"x-robots-tag": "otherbot: noml"}, b"", (False, False)),
        ({"tdm-reservation": "1", "tdm-policy": "https://a.test/p"}, b"", (False, False)),
        ({"tdm-reservation": "0"}, b"", (True, True)),
        ({"content-signal": "ai-train=no"}, b"", (True, True)),
        ({"content-signal": "ai-input = no, search=yes"}, b"", (False, True)),
        ({}, b'<head><META content="index,NoAI" name="Robots"></head>', (False, False)),
        ({}, b"<meta name=tdm-reservation content=1>", (False, False)),
        ({}, b"<meta name='tdm-reservation' content='0'>", (True, True)),
        ({}, b"<meta name='description' content='noai'>", (True, True)),
    ],
)
def test_a_page_says_whether_it_may_be_sent_to_a_model_and_exported(
    headers: Mapping[str, str], body: bytes, expected: tuple[bool, bool]
) -> None:
    rights = header_rights(headers) | meta_rights(body)

    assert (allows_models(rights), not is_reserved(rights)) == expected


def test_the_signal_of_a_group_is_stored_with_the_rules_of_the_host() -> None:
    rules = rules_of_answer(200, {}, ROBOTS, now=NOON)

    stored = from_stored(json.loads(json.dumps(as_stored(rules, "us/1.0"))), "us/1.0")

    assert stored is not None
    assert stored.robots.group("us/1.0").signal == "search=yes, ai-train=no, ai-input=no"
    assert rules.robots.group("other").signal == "ai-input=yes"
    assert rules.robots.allows("us/1.0", "https://a.test/b")


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/open/a", {"tdm-reservation": "0"}),
        ("/closed?x=1", {"tdm-reservation": "1", "tdm-policy": "https://a.test/policy"}),
    ],
)
def test_the_first_location_of_a_tdmrep_file_that_matches_decides(path: str, expected: Mapping[str, str]) -> None:
    assert site_rights(path, signal=None, tdm=tdm_rules(json.dumps(TDMREP).encode())) == expected


@pytest.mark.parametrize("body", [b"", b"<html>", b"{}", b"[1, null]", b'[{"location": 1}]', b"[" * 100_000])
def test_a_malformed_tdmrep_file_says_nothing(body: bytes) -> None:
    assert tdm_rules(body) == []
