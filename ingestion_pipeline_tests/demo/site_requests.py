"""HTTP requests to the demo site and their replies."""

import json
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from email.message import Message
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlencode, urlsplit
from xml.etree import ElementTree as ET

from ingestion_pipeline.demo.content import LIGHTHOUSE_ID
from ingestion_pipeline.demo.site import DemoSite


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    status: int
    headers: Message
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def titles(self) -> list[str | None]:
        return [title.text for title in ET.fromstring(self.body).iterfind("channel/item/title")]


def get(site: DemoSite, url: str, **headers: str) -> Reply:
    return send(site, "GET", url, {name.replace("_", "-"): text for name, text in headers.items()})


def send(site: DemoSite, method: str, url: str, headers: Mapping[str, str], body: bytes | None = None) -> Reply:
    target = urlsplit(url)
    path = f"{target.path}?{target.query}" if target.query else target.path
    with closing(HTTPConnection("127.0.0.1", site.port, timeout=10)) as connection:
        connection.request(method, path, body, headers={"Host": target.netloc, **headers})
        with connection.getresponse() as response:
            return Reply(status=response.status, headers=response.headers, body=response.read())


def manga_feed(site: DemoSite, manga_id: str, **query: object) -> Reply:
    url = f"http://api.mangadex.demo.test/manga/{manga_id}/feed"
    return get(site, f"{url}?{urlencode(query, doseq=True)}")


def all_chapters(site: DemoSite, limit: int) -> list[dict[str, Any]]:
    total = manga_feed(site, LIGHTHOUSE_ID, limit=limit).json["total"]
    pages = (
        manga_feed(site, LIGHTHOUSE_ID, limit=limit, offset=offset).json["data"] for offset in range(0, total, limit)
    )
    return [chapter for page in pages for chapter in page]
