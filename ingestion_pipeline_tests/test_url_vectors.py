"""URL test vectors of the web platform and of w3lib."""

import json
from typing import Any

from ingestion_pipeline.urls import BadUrl, canonical_url, host_of, request_url
from ingestion_pipeline_tests.samples import sample

WEB = ("http://", "https://")


def vectors(name: str) -> list[dict[str, Any]]:
    cases = json.loads(sample(f"urls/{name}").read_text())
    return [case for case in cases if isinstance(case, dict)]


def canonical(url: str) -> str | None:
    """Return the canonical URL, or None for a text that is no web URL."""
    try:
        return canonical_url(url)
    except BadUrl:
        return None


def test_absolute_urls_of_the_web_platform_are_parsed_as_browsers_do() -> None:
    cases = [c for c in vectors("wpt_urltestdata.json") if c["input"].strip().startswith(WEB)]
    expected = {c["input"]: c["href"] for c in cases if str(c.get("href", "")).startswith(WEB)}

    assert len(expected) > 150
    wrong = {url: href for url, href in expected.items() if canonical(url) != canonical_url(href)}
    assert wrong == {}


def test_a_url_that_browsers_reject_is_a_bad_url() -> None:
    cases = [c for c in vectors("wpt_urltestdata.json") if c.get("failure")]
    urls = [c["input"] for c in cases if c["base"] is None and c["input"].startswith(WEB)]

    assert len(urls) > 100
    assert [url for url in urls if canonical(url) is not None] == []


# We ask a name server where a browser gives up; none of these can be registered, and the guard
# judges by the address. Refusing them needs the tables for joiners and for writing direction.
TAKEN_BY_US_ALONE = {
    "xn--a.\xdf": "broken Punycode beside a good label",
    "xn--te\u0161la": "Punycode with another letter in it",
    "\u200d.example": "a joiner that joins nothing",
    "\u064aa": "right-to-left and left-to-right in one label",
    "look\u05beout.net": "right-to-left punctuation in a left-to-right label",
}


def test_international_names_become_the_ascii_that_browsers_use() -> None:
    wrong: set[str] = set()
    for case in vectors("wpt_toascii.json"):
        try:
            host = host_of(f"http://{case['input']}/")
        except BadUrl:
            host = None
        if host != case["output"]:
            wrong.add(case["input"])

    assert wrong == TAKEN_BY_US_ALONE.keys()


# w3lib's canonical form where ours is another on purpose, with the reason.
OTHERWISE = {
    "http://www.example.com/do?c=3&b=5&b=2&a=50": "the order of equal names can select a page",
    "http://www.example.com/do?b=&c&a=2": "some servers tell `c` from `c=`",
    "http://www.example.com/do?1750,4": "some servers tell `1750,4` from `1750%2C4=`",
    "http://www.example.com/do?q=a space&a=1": "a plus is a space only in forms",
    "http://www.example.com/do?q=a%20space&a=1": "a plus is a space only in forms",
    "a#frag": "no web address",
    "a?b=1#frag": "no web address",
    "?b=1": "no web address",
    "sftp://UsEr:PaSsWoRd@www.EXAMPLE.com/": "no web address",
}


def test_w3libs_canonical_forms_are_ours_but_for_reasons_given() -> None:
    cases = [c for c in vectors("w3lib_url_vectors.json") if c["function"] == "canonicalize_url"]
    plain = {c["args"][0]: c["expected"] for c in cases if not c.get("options")}

    assert len(plain) > 40
    wrong = {url for url, form in plain.items() if canonical(url) not in {form, _ours(form)}}
    assert wrong == OTHERWISE.keys()


def _ours(form: str) -> str:
    return canonical(form) or form


def test_w3libs_safe_urls_are_what_we_send() -> None:
    cases = [c for c in vectors("w3lib_url_vectors.json") if c["function"] == "safe_url_string"]
    plain = [c for c in cases if len(c["args"]) == 1 and not c.get("options")]
    urls = {c["args"][0]: c["expected"] for c in plain if c["args"][0].startswith(WEB)}

    assert len(urls) > 15
    for url, form in urls.items():
        assert request_url(url) == request_url(form)


def test_percent_encoding_in_a_query_is_that_of_utf_8() -> None:
    for case in vectors("wpt_percent_encoding.json"):
        sent = request_url(f"http://a.test/?{case['input']}").partition("?")[2]
        expected = request_url(f"http://a.test/?{case['output']['utf-8']}").partition("?")[2]
        assert sent == expected
