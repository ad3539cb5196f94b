"""Signed requests (Web Bot Auth), verified with another's implementation of RFC 9421."""

import asyncio
import base64
import json
import stat
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from http_message_signatures.algorithms import ED25519  # pyright: ignore[reportPrivateImportUsage]
from http_message_signatures.exceptions import InvalidSignature
from http_message_signatures.resolvers import HTTPSignatureKeyResolver
from http_message_signatures.signatures import HTTPMessageVerifier

from ingestion_pipeline.bootstrap import open_fetcher
from ingestion_pipeline.pages.http.identity import (
    AgentKey,
    IdentityExists,
    create_identity,
    load_identity,
)
from ingestion_pipeline.pages.http.request import Request
from ingestion_pipeline.settings import load_settings
from ingestion_pipeline_tests.builders import NOON
from ingestion_pipeline_tests.fakes import FakeWeb

AGENT_URL = "https://bot.example.org"


@dataclass(frozen=True)
class Message:
    """A request as a site receives it."""

    url: str
    headers: Mapping[str, str]
    method: str = "GET"


class Directory(HTTPSignatureKeyResolver):
    """Keys as a site reads them from the directory that the agent serves."""

    def __init__(self, directory: dict[str, list[dict[str, str]]]) -> None:
        self._keys = {key["kid"]: key for key in directory["keys"]}

    def resolve_public_key(self, key_id: str) -> Ed25519PublicKey:
        x = self._keys[key_id]["x"]
        return Ed25519PublicKey.from_public_bytes(base64.urlsafe_b64decode(x + "=" * (-len(x) % 4)))


def verify(identity: AgentKey, request: Message) -> None:
    verifier = HTTPMessageVerifier(
        signature_algorithm=ED25519, key_resolver=Directory(json.loads(json.dumps(identity.directory)))
    )
    [result] = verifier.verify(
        request,
        max_age=timedelta(minutes=5),
        expect_tag="web-bot-auth",
        require_components=["@authority", "signature-agent"],
    )
    assert result.covered_components['"signature-agent"'] == f'"{AGENT_URL}"'


def signed(identity: AgentKey, url: str, *, ago: timedelta = timedelta()) -> Message:
    headers = identity.signature_headers(url, agent_url=AGENT_URL, at=time.time() - ago.total_seconds())
    return Message(url, {name.lower(): value for name, value in headers.items()})


@pytest.mark.parametrize("url", ["https://a.test/x?y=1", "http://A.test:8080/", "https://a.test:443/"])
def test_a_site_that_knows_the_directory_recognises_a_request(tmp_path: Path, url: str) -> None:
    identity = create_identity(tmp_path)

    verify(identity, signed(identity, url))


def test_a_signature_is_of_no_use_to_others(tmp_path: Path) -> None:
    identity = create_identity(tmp_path)

    with pytest.raises(InvalidSignature):
        verify(identity, replace(signed(identity, "https://a.test/"), url="https://b.test/"))
    with pytest.raises(InvalidSignature):
        verify(identity, signed(identity, "https://a.test/", ago=timedelta(minutes=10)))
    with pytest.raises(InvalidSignature):
        verify(create_identity(tmp_path / "other"), _with_key_of(identity, tmp_path / "other"))


def _with_key_of(identity: AgentKey, other: Path) -> Message:
    """Return a request that names the other's key, signed by ours."""
    theirs = load_identity(other)
    assert theirs is not None
    request = signed(identity, "https://a.test/")
    names_theirs = request.headers["signature-input"].replace(identity.key_id, theirs.key_id)
    return replace(request, headers={**request.headers, "signature-input": names_theirs})


def test_every_request_is_signed_once_a_key_and_its_directory_exist(tmp_path: Path) -> None:
    with FakeWeb({"/": "<p>page</p>"}) as web:
        environment = {"INGESTION_HOME": str(tmp_path), "INGESTION_ALLOW_HOSTS": web.host_port}
        with_agent = load_settings(environment | {"INGESTION_IDENTITY__AGENT_URL": AGENT_URL})

        async def fetch() -> None:
            for settings in (load_settings(environment), with_agent):
                async with open_fetcher(settings) as fetcher:
                    await fetcher.fetch(Request(url=web.url()), now=NOON)

        asyncio.run(fetch())
        identity = create_identity(tmp_path)
        asyncio.run(fetch())

        *unsigned, request = web.requests
        assert all("signature" not in other.headers for other in unsigned)
        verify(identity, Message(web.url(), request.headers))


def test_the_key_is_readable_by_its_owner_alone_and_never_replaced(tmp_path: Path) -> None:
    create_identity(tmp_path)

    assert stat.S_IMODE((tmp_path / "identity.pem").stat().st_mode) == 0o600
    with pytest.raises(IdentityExists):
        create_identity(tmp_path)
