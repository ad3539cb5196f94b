"""The doctor's checks of the model server, the allow list and the installed packages."""

import json
import socket
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import pytest

from ingestion_pipeline.cli.doctor import DoctorCheck, allow_list, model_server, versions
from ingestion_pipeline.settings import load_settings
from ingestion_pipeline_tests.builders import a_source
from ingestion_pipeline_tests.cli.conftest import Ingest

KEY = "sk-canary-1234567890"


@contextmanager
def serving(status: int, body: object) -> Generator[str]:
    """Serve one fixed answer as a model server; yield its base URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            content = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Nothing."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/v1"
        server.shutdown()


def reach_model(base_url: str) -> DoctorCheck:
    return model_server(load_settings({"OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": base_url}))


def model_list(*names: str) -> dict[str, object]:
    models = [{"id": name, "object": "model", "created": 0, "owned_by": "us"} for name in names]
    return {"object": "list", "data": models}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("status", "body", "state", "detail"),
    [
        (200, model_list("gpt-5-mini", "gpt-5"), "ok", "answers in"),
        (200, model_list("other"), "warning", "does not list gpt-5-mini, gpt-5"),
        (401, {"error": {"message": f"bad key {KEY}"}}, "failed", "refuses the key (401)"),
        (403, {"error": {"message": "no"}}, "failed", "refuses the key (403)"),
        (404, {"error": {"message": "no such page"}}, "ok", "answers in"),
        (503, {"error": {"message": "busy"}}, "warning", "answers 503"),
    ],
)
def test_answers_to_the_model_list_request_are_distinguished(
    status: int, body: object, state: str, detail: str
) -> None:
    with serving(status, body) as base_url:
        check = reach_model(base_url)

    assert (check.state, detail in check.found) == (state, True), check
    assert KEY not in f"{check}"


def test_an_unreachable_server_fails_with_its_address_and_the_cure() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

    check = reach_model(f"http://127.0.0.1:{port}/v1")

    assert check.state == "failed"
    assert f"127.0.0.1:{port}" in check.found
    assert "OPENAI_BASE_URL" in check.cure


@pytest.mark.slow
def test_the_doctor_contacts_the_server_unless_offline(ingest: Ingest) -> None:
    with serving(401, {}) as base_url:
        variables = {"OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": base_url}
        online = ingest.with_variables(variables, "doctor", "--json")
        offline = ingest.with_variables(variables, "doctor", "--offline", "--json")

    assert (online.exit_code, "refuses the key" in online.stdout) == (1, True)
    assert (offline.exit_code, "refuses the key" in offline.stdout) == (0, False)


def test_exempt_hosts_are_named_and_unused_ones_are_a_warning() -> None:
    source = a_source(url="http://intra.test:8080/feed")

    assert allow_list([], [source]).state == "ok"
    assert "intra.test:8080" in allow_list(["intra.test:8080"], [source]).found
    unused = allow_list(["intra.test:8080", "10.0.0.7:80"], [source])
    assert (unused.state, unused.found) == ("warning", "no source is at 10.0.0.7:80")


def test_incompatible_packages_are_named_with_their_requirement() -> None:
    assert versions().state == "ok"
    needed = ["pytest>=1", "dagster==0.0.1", "no-such-package>=2", "scrapy==0; extra == 'bench'"]

    check = versions(needed)

    assert check.state == "failed"
    assert "dagster is 1." in check.found
    assert "no-such-package>=2 is not installed" in check.found
    assert "scrapy" not in check.found
