from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingestion_pipeline.reading.structured.sitemaps import MAX_DEPTH, read_xml
from ingestion_pipeline.tasks.errors import Permanent, Transient, WorkError


def test_a_document_is_a_tree_of_names_and_texts() -> None:
    root = read_xml(b"<a:jobs xmlns:a='x'><job><id> 7 </id><id>8</id><t><![CDATA[<b>]]></t></job></a:jobs>")

    (job,) = root.each("job")
    assert root.name == "jobs"
    assert (job.text_of("id"), job.text_of("t"), job.text_of("none")) == ("7", "<b>", None)


def test_the_bytes_decide_the_encoding_and_not_what_they_say() -> None:
    stated = '<?xml version="1.0" encoding="utf-16"?><a>ü</a>'

    assert read_xml(stated.encode()).text == "ü"
    assert read_xml(stated.encode("utf-16")).text == "ü"
    assert read_xml(stated.replace("utf-16", "iso-8859-1").encode("latin-1")).text == "ü"


@pytest.mark.parametrize(
    ("body", "error", "code"),
    [
        (b"", Transient, "truncated"),
        (b"<a><b>half", Transient, "truncated"),
        (b"<a><![CDATA[half", Transient, "truncated"),
        (b"hello", Permanent, "not_xml"),
        (b"{}", Permanent, "not_xml"),
        (b"<a></b>", Permanent, "not_xml"),
        (b"<a>&nbsp;</a>", Permanent, "not_xml"),
        (b"<!DOCTYPE a><a/>", Permanent, "xml_entity"),
        (b'<!DOCTYPE a [<!ENTITY b "c">]><a>&b;</a>', Permanent, "xml_entity"),
        (b'<!DOCTYPE a SYSTEM "http://127.0.0.1/x.dtd"><a/>', Permanent, "xml_entity"),
        (b"<a>" * (MAX_DEPTH + 1), Permanent, "too_deep"),
        (b"<a>" * 1_000_000, Permanent, "too_deep"),
    ],
    ids=lambda value: value[:40].decode() if isinstance(value, bytes) else "",
)
def test_what_is_no_document_is_refused_at_once(body: bytes, error: type[WorkError], code: str) -> None:
    started = time.process_time()

    with pytest.raises(error) as caught:
        read_xml(body)

    assert caught.value.code == code
    assert time.process_time() - started < 0.1


@given(st.binary(max_size=200) | st.text(max_size=100).map(lambda text: f"<a>{text}</a>".encode(errors="replace")))
def test_no_body_is_too_strange(body: bytes) -> None:
    try:
        assert read_xml(body).name
    except WorkError as error:
        assert error.code in {"truncated", "not_xml", "xml_entity", "too_deep"}  # noqa: PT017  either may be
