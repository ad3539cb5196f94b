"""Lever: the Postings API (https://github.com/lever/postings-api), all at once."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import quote, urlsplit

from ingestion_pipeline.companies.listing import Listing
from ingestion_pipeline.companies.platforms.fields import (
    MAX_TITLE_CHARACTERS,
    ListingFields,
    apart,
    description_of,
    list_of,
    one_line,
    remote_in,
)
from ingestion_pipeline.companies.platforms.json_api import (
    ACCEPT,
    ApiPage,
    JobContext,
    JsonApi,
    JsonBoard,
    detail_of,
)
from ingestion_pipeline.companies.platforms.protocol import AddressPlace, JobPlatform, read_place
from ingestion_pipeline.companies.salary import stated_salary
from ingestion_pipeline.pages.http.request import Request
from ingestion_pipeline.reading.html.links import absolute_link
from ingestion_pipeline.sources.config_reader import ConfigReader

API_BASE = "https://api.lever.co"
EU_API_BASE = "https://api.eu.lever.co"


def _first(place: AddressPlace) -> Request:
    token = quote(place.known_token(), safe="")
    return Request(url=f"{place.api_base}/v0/postings/{token}?mode=json", accept=ACCEPT)


def _page(document: object) -> ApiPage | None:
    if (items := list_of(document)) is not None:
        return ApiPage(document=ListingFields({}), items=items)
    fields = ListingFields.of(document)
    return detail_of(document) if fields.text("text") and fields.text("id") else None


def _listing(item: ListingFields, known: JobContext) -> Listing | None:
    title = one_line(item.value("text"), most=MAX_TITLE_CHARACTERS)
    external_id = item.text("id")
    if title is None or external_id is None:
        return None
    location = item.text("categories.location")
    return Listing(
        external_id=external_id,
        title=title,
        url=absolute_link(known.url, item.text("hostedUrl", "applyUrl")),
        location=location,
        posted_at=known.date(item.text("createdAt")),
        description=_description(item),
        company=known.place.company,
        department=item.text("categories.department", "categories.team"),
        employment_type=item.text("categories.commitment"),
        remote=remote_in(item.text("workplaceType"), location),
        salary=stated_salary(
            item.text("salaryRange.min"),
            item.text("salaryRange.max"),
            currency=item.text("salaryRange.currency"),
            period=item.text("salaryRange.interval"),
        ),
        other_locations=apart(location, item.texts("categories.allLocations")),
    )


def _description(item: ListingFields) -> str | None:
    """Opening, body, lists with their headings, and what is added at the end."""
    lists = (
        f"<h3>{one.markup('text') or ''}</h3><ul>{one.markup('content') or ''}</ul>"
        for one in item.each("lists")
    )
    body = item.markup("description", "descriptionBody", "descriptionPlain")
    return description_of(body, *lists, item.markup("additional", "additionalPlain"))


API = JsonApi(wanted="/v0/postings/<token>?mode=json", first=_first, page=_page, listing=_listing)


def configure(url: str, config: Mapping[str, object]) -> JsonBoard:
    """The board that the address or `board_token` names; boards of the EU have an API there."""
    reader = ConfigReader("lever", config)
    default = EU_API_BASE if (urlsplit(url).hostname or "").endswith(".eu.lever.co") else API_BASE
    place = read_place(reader, url, platform="lever", api_base=default)
    reader.finish()
    return JsonBoard(place=place, api=API)


PLATFORM = JobPlatform(name="lever", version=2, honours_robots=False, configure=configure)
