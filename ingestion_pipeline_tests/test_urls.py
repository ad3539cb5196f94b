"""Canonical URLs, also of the web platform's and w3lib's vectors, secrets in URLs, and refused addresses."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from ingestion_pipeline.reading.html.links import canonical_or_none
from ingestion_pipeline.urls import (
    BadUrl,
    canonical_url,
    checked_url,
    domain_label,
    has_credentials,
    host_of,
    is_refused_address,
    request_url,
    without_credentials,
    without_secrets,
    without_session_ids,
)
from ingestion_pipeline_tests.samples import sample

CASES = yaml.safe_load((Path(__file__).parent / "expected" / "urls.yaml").read_text(encoding="utf-8"))

ROOT = Path(__file__).resolve().parent.parent
SAMPLES = Path(os.environ.get("INGESTION_SAMPLES") or ROOT.parent / "shared" / "samples")

urls = st.builds(
    "{}://{}{}/{}?{}#{}".format,
    st.sampled_from(["http", "HTTPS", "https"]),
    st.sampled_from(["a.test", "A.Test.", "bücher.example", "[::1]", "127.0.0.1", "☃.net", "u:p@h"]),
    st.sampled_from(["", ":80", ":443", ":0080", ":8080", ":"]),
    st.text(st.sampled_from("ab/.%2eE41\\~ é|"), max_size=20) | st.text(max_size=10),
    st.lists(st.sampled_from(["b=2", "a=1", "a=0", "", "utm_x=1", "sid=a1b2c3d4", "%%34%31", "a%3D", "fbclid"])).map(
        "&".join
    ),
    st.text(max_size=5),
)


@given(urls)
@example("http://a.test/%%34%31?%%34%31")
def test_the_canonical_form_of_a_canonical_form_is_itself(url: str) -> None:
    once = canonical_url(url)

    assert canonical_url(once) == once


@given(st.text(max_size=40).map("http://{}".format) | st.text(max_size=40))
def test_any_text_is_a_url_or_a_bad_url(text: str) -> None:
    try:
        once = canonical_url(text)
    except BadUrl:
        return

    assert once.isascii()
    assert canonical_url(once) == once


@given(urls)
def test_the_url_on_the_wire_is_the_same_page(url: str) -> None:
    assert canonical_url(request_url(url)) == canonical_url(url)


def test_the_web_platform_urls_have_one_canonical_form() -> None:
    path = SAMPLES / "urls" / "wpt_urltestdata.json"
    if not path.exists():
        pytest.skip(f"no samples at {path}; set INGESTION_SAMPLES")
    cases = [case for case in json.loads(path.read_text()) if isinstance(case, dict)]
    hrefs = [c["href"] for c in cases if str(c.get("href", "")).startswith(("http:", "https:"))]

    assert len(hrefs) > 200
    for href in hrefs:
        assert canonical_url(canonical_url(href)) == canonical_url(href)


@pytest.mark.parametrize(("url", "expected"), CASES["spellings_have_one_canonical_form"])
def test_spellings_have_one_canonical_form(url: str, expected: str) -> None:
    assert canonical_url(url) == expected


@pytest.mark.parametrize(("url", "expected"), CASES["session_ids_and_tracking_parameters_are_removed"])
def test_session_ids_and_tracking_parameters_are_removed(url: str, expected: str) -> None:
    assert canonical_url(url) == canonical_or_none(url) == expected
    assert canonical_url(without_session_ids(url)) == expected


@pytest.mark.parametrize("url", CASES["parameters_that_select_a_page_stay"])
def test_parameters_that_select_a_page_stay(url: str) -> None:
    assert canonical_url(url) == canonical_or_none(url) == without_session_ids(url) == url


def test_on_the_wire_no_parameter_is_lost_or_moved() -> None:
    assert request_url("http://A.test/a%7e?b=é&a=1&utm_x=2#f") == ("http://a.test/a%7e?b=%C3%A9&a=1&utm_x=2")


NO_WEB_ADDRESS = [
    *("", "a.test/x", "ftp://a.test/", "file:///etc/passwd", "javascript:alert(1)"),
    *("http://", "http:///x", "http://a b/", "http://a%00b/", "http://%ff/", "http://[::1/"),
    *("http://[::g]/", "http://a.test:99999/", "http://a.test:x/", "http://a.test:8a/"),
    *("http://1.2.3.4.5/", "http://256.1.1.1/", "http://1.2.3.09/", "http://a.1/", "http://1..2/"),
]


@pytest.mark.parametrize("url", NO_WEB_ADDRESS)
def test_a_text_that_is_no_web_url_is_a_bad_url(url: str) -> None:
    with pytest.raises(BadUrl):
        canonical_url(url)


def test_a_host_carries_its_port_only_when_it_is_not_the_default() -> None:
    assert host_of("https://A.test:443/x") == "a.test"
    assert host_of("https://A.test:8443/x") == "a.test:8443"


WITH_PASSWORD = [
    *("http://u:hunter2@a.test/x", "https://hunter2@a.test/", "http://u:hunter2/x@a.test/"),
    *("http://u:p@hunter2@a.test/", "u:hunter2@a.test/", "http://u:hunter2?@a.test:x/"),
]


@pytest.mark.parametrize("url", WITH_PASSWORD)
def test_a_password_is_detected_and_never_echoed(url: str) -> None:
    assert has_credentials(url)
    assert "hunter2" not in without_credentials(url)
    with pytest.raises(BadUrl) as caught:
        checked_url(url)
    assert "hunter2" not in str(caught.value)


def test_a_secret_parameter_is_not_shown() -> None:
    assert without_credentials("http://a.test/?q=1&api_key=hunter2&z=2#f") == ("http://a.test/?q=1&api_key=...&z=2#f")


@pytest.mark.parametrize(("url", "stored"), CASES["a_url_is_stored_without_its_secrets"])
def test_a_url_is_stored_without_its_secrets(url: str, stored: str) -> None:
    assert without_secrets(url) == stored
    assert canonical_url(url) == stored.partition("#")[0]


@pytest.mark.parametrize(
    "url",
    [
        *("https://a.test/x?token=4012345007", "https://a.test/x?key=drama", "https://a.test/x?"),
        *("https://a.test/x?page_token=abcdefgh12", "https://a.test/x?signature=1", "not a url"),
        *("https://a.test/@someone?keyword=token", "https://a.test/x#a=1"),
    ],
)
def test_a_parameter_that_selects_a_page_stays_in_its_address(url: str) -> None:
    assert without_secrets(url) == url


def test_an_at_sign_in_a_path_is_no_credential() -> None:
    assert not has_credentials("https://a.test/@someone")
    assert without_credentials("https://a.test:80/@someone") == "https://a.test:80/@someone"


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("ftp://a.test/", "must begin with http"),
        ("http://u:p@a.test/", "remove the part before the @"),
        ("http://a.test/\x07", "control character"),
        ("http://a.test/a b", "%20"),
        ("http://a.test/" + "x" * 2000, "2000 or fewer"),
        ("http:///x", "host"),
    ],
)
def test_a_bad_source_url_names_its_problem(url: str, problem: str) -> None:
    with pytest.raises(BadUrl, match=problem):
        checked_url(url)


def test_a_good_source_url_is_unchanged() -> None:
    assert checked_url("https://A.test/x?b=2&a=1") == "https://A.test/x?b=2&a=1"


@pytest.mark.parametrize(
    ("host", "label"),
    [
        *(("acme.com", "acme"), ("www.acme.com.br", "acme"), ("shop.acme.co.uk", "acme"), ("a.acme.kobe.jp", "a")),
        *(("acme.github.io", "acme"), ("github.io", "github"), ("go.com", "go"), ("shop.go.com", "go")),
        *(("xn--mnchen-3ya.de", "münchen"), ("jobs.acme.test", "acme"), ("localhost", ""), ("10.0.0.1", "")),
    ],
)
def test_the_label_of_a_domain_is_what_its_owner_registered(host: str, label: str) -> None:
    assert domain_label(host) == label


REFUSED = """
127.0.0.1 127.8.9.1 0.0.0.0 0.1.2.3 10.1.2.3 172.16.0.1 172.31.255.1 192.168.1.1 169.254.169.254
100.64.0.1 100.127.255.255 100.100.100.200 192.0.0.192 192.0.2.1 192.88.99.1 198.18.0.1
198.19.255.255 198.51.100.1 203.0.113.1 168.63.129.16 224.0.0.1 240.0.0.1 255.255.255.255
::1 :: fe80::1 fe80::1%lo fc00::1 fd00:ec2::254 fec0::1 ff02::1 100::1 2001:db8::1 3fff::1
::ffff:127.0.0.1 ::ffff:10.0.0.1 ::ffff:169.254.169.254 64:ff9b::7f00:1 64:ff9b::10.0.0.1
64:ff9b:1::8.8.8.8 2002:7f00:1:: 2001:0:1::1 ::127.0.0.1 ::8.8.8.8
127.1 2130706433 0x7f.1 0177.0.0.1 localhost
"""
ALLOWED = """
8.8.8.8 1.1.1.1 93.184.216.34 172.32.0.1 100.128.0.1 198.20.0.1 2606:4700:4700::1111 2a00:1450::1
2001:200::1 ::ffff:8.8.8.8 64:ff9b::8.8.8.8
"""


@pytest.mark.parametrize("ip", [*REFUSED.split(), "", " 8.8.8.8"])
def test_an_address_that_is_not_public_is_refused(ip: str) -> None:
    assert is_refused_address(ip)


@pytest.mark.parametrize("ip", ALLOWED.split())
def test_a_public_address_is_allowed(ip: str) -> None:
    assert not is_refused_address(ip)


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
    wrong = {url for url, form in plain.items() if canonical(url) not in {form, canonical(form) or form}}
    assert wrong == OTHERWISE.keys()


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
