"""Job boards of every platform, and fixture bodies parsed by them."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ingestion_pipeline.companies import Listing
from ingestion_pipeline.companies.platforms import JobBoard, platform
from ingestion_pipeline.reading.structured.items import ParsedFeed
from ingestion_pipeline_tests.companies.cases import tables

FIXTURES = Path(__file__).parent.parent / "fixtures" / "jobs"
NOW = datetime(2026, 3, 5, 15, 30, tzinfo=UTC)
BOARDS: dict[str, dict[str, Any]] = tables("boards")
URLS: dict[str, str] = {name: board["url"] for name, board in BOARDS.items()}
CONFIGS: dict[str, dict[str, object]] = {name: board.get("config", {}) for name, board in BOARDS.items()}


def configured_board(name: str, **config: object) -> JobBoard:
    return platform(name).configure(URLS[name], {**CONFIGS.get(name, {}), **config})


def fixture_body(file: str) -> bytes:
    return (FIXTURES / file).read_bytes()


def parse_board(name: str, *bodies: bytes, **config: object) -> ParsedFeed[Listing]:
    return configured_board(name, **config).read(list(bodies), content_types=[None] * len(bodies), now=NOW)
