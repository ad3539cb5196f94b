"""Web Bot Auth: requests are signed by a key of this installation, so that sites can tell them from imitations.

Each request carries a signature of RFC 9421 over its authority and the address of the directory that publishes the
public key (draft-meunier-web-bot-auth-architecture). The private key stays in INGESTION_HOME.
"""

import base64
import hashlib
import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from ingestion_pipeline.urls import request_url

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

KEY_FILE = "identity.pem"
DIRECTORY_PATH = "/.well-known/http-message-signatures-directory"
VALID_FOR = timedelta(minutes=5)  # a signature that is replayed later is refused
_DEFAULT_PORTS = {"http": 80, "https": 443}


class IdentityExists(Exception):
    """A key exists already; another one would be a stranger to the sites that know it."""


@dataclass(frozen=True, slots=True)
class AgentKey:
    """The key of this installation."""

    key: "Ed25519PrivateKey"

    @property
    def public_jwk(self) -> dict[str, str]:
        """Return the public key as a JSON Web Key."""
        return {"kty": "OKP", "crv": "Ed25519", "x": _base64url(self.key.public_key().public_bytes_raw())}

    @property
    def key_id(self) -> str:
        """Return the thumbprint of the public key (RFC 7638), by which sites find it in the directory."""
        canonical = json.dumps(self.public_jwk, sort_keys=True, separators=(",", ":"))
        return _base64url(hashlib.sha256(canonical.encode()).digest())

    @property
    def directory(self) -> dict[str, list[dict[str, str]]]:
        """Return the document to serve at `DIRECTORY_PATH` of the agent's site."""
        return {"keys": [{**self.public_jwk, "kid": self.key_id, "use": "sig"}]}

    def signature_headers(self, url: str, *, agent_url: str, at: float) -> Mapping[str, str]:
        """Return the headers that sign a request for the URL, sent at this time, in seconds of the epoch."""
        created = int(at)
        expires = created + int(VALID_FOR.total_seconds())
        nonce = base64.b64encode(secrets.token_bytes(24)).decode()
        covered = (
            f'("@authority" "signature-agent");created={created};expires={expires}'
            f';keyid="{self.key_id}";alg="ed25519";nonce="{nonce}";tag="web-bot-auth"'
        )
        agent = f'"{agent_url}"'
        base = f'"@authority": {_authority(url)}\n"signature-agent": {agent}\n"@signature-params": {covered}'
        signature = base64.b64encode(self.key.sign(base.encode())).decode()
        return {"Signature-Agent": agent, "Signature-Input": f"sig1={covered}", "Signature": f"sig1=:{signature}:"}


def load_identity(home: Path) -> AgentKey | None:
    """Return the key of the installation; None if none was created."""
    path = home / KEY_FILE
    if not path.exists():
        return None
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    key = load_pem_private_key(path.read_bytes(), password=None)
    if not isinstance(key, Ed25519PrivateKey):
        raise ValueError(f"{path} holds no ed25519 key: move it away, then `ingest identity create`")  # noqa: TRY004
    return AgentKey(key)


def create_identity(home: Path) -> AgentKey:
    """Create the key of the installation, readable by its owner alone; raise `IdentityExists` if there is one."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    key = Ed25519PrivateKey.generate()
    home.mkdir(parents=True, exist_ok=True)
    try:
        descriptor = os.open(home / KEY_FILE, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise IdentityExists(f"{home / KEY_FILE} exists; `ingest identity show` prints its public part") from None
    with os.fdopen(descriptor, "wb") as file:
        file.write(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return AgentKey(key)


def _authority(url: str) -> str:
    """Return the host, with its port unless that is the scheme's own."""
    parts = urlsplit(request_url(url))
    host = (parts.hostname or "").lower()
    host = f"[{host}]" if ":" in host else host
    is_default = parts.port in {None, _DEFAULT_PORTS.get(parts.scheme)}
    return host if is_default else f"{host}:{parts.port}"


def _base64url(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
