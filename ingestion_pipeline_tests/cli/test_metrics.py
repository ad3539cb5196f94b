from __future__ import annotations

import threading
from http.client import HTTPConnection
from pathlib import Path

import pytest

from ingestion_pipeline.cli.metrics import open_server
from ingestion_pipeline_tests.cli.conftest import Ingest


def test_metrics_are_printed_or_written_whole(ingest: Ingest, tmp_path: Path) -> None:
    out = tmp_path / "ingestion.prom"
    printed = ingest.done("metrics")

    ingest.done("metrics", "--out", str(out))

    assert "# TYPE ingestion_polls_total counter\n" in printed
    assert out.read_text().splitlines()[:-1] == printed.splitlines()[:-1]  # but for the time
    assert list(tmp_path.glob(".*.part")) == []
    assert "use one of them" in ingest.refused("metrics", "--out", str(out), "--serve", "0")


def test_a_folder_that_is_not_there_is_a_sentence(ingest: Ingest, tmp_path: Path) -> None:
    result = ingest("metrics", "--out", str(tmp_path / "nowhere" / "x.prom"))

    assert result.exit_code == 1
    assert "No such file" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_scrape_of_loopback_is_answered(ingest: Ingest, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INGESTION_HOME", str(home))
    with open_server(0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        asked = HTTPConnection("127.0.0.1", server.server_port, timeout=30)
        asked.request("GET", "/metrics")
        answer = asked.getresponse()
        body = answer.read().decode()
        asked.request("GET", "/")
        other = asked.getresponse().status
        server.shutdown()

    assert (answer.status, other) == (200, 404)
    assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    assert "ingestion_sources{" in body
    assert server.server_address[0] == "127.0.0.1"
