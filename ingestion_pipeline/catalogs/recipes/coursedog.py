"""Coursedog's API: the URLs of its lists, and the length that a response reports.

A list is requested by `skip` and `limit`, 20 courses at a time, up to the length that the API
itself reports. A response of another shape is an error, never an empty list.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast
from urllib.parse import parse_qs, quote, urlencode, urlsplit

from ingestion_pipeline.tasks.errors import Permanent

API_BASE = "https://app.coursedog.com/api/v1"
PAGE_SIZE = 20
MAX_COURSES = 200_000  # of one catalogue: the largest real ones have a tenth of it


@dataclass(frozen=True, slots=True, kw_only=True)
class CoursedogApi:
    """The school, catalogues and server to read."""

    school_id: str
    catalog_ids: tuple[str, ...]
    api_base: str = API_BASE
    effective_from: str | None = None
    effective_until: str | None = None

    @property
    def first_url(self) -> str:
        """The URL of the page that all others follow from."""
        return self.page_url(self.catalog_ids[0], 0)

    def page_url(self, catalog_id: str, skip: int) -> str:
        """Return the URL of 20 courses of a catalogue after the first `skip`."""
        query = {"catalogId": catalog_id, "skip": skip, "limit": PAGE_SIZE, "orderBy": "code"}
        if self.effective_from or self.effective_until:
            ends = (self.effective_from or "", self.effective_until or self.effective_from or "")
            query["effectiveDatesRange"] = ",".join(ends)
        school = quote(self.school_id, safe="")
        address = f"{self.api_base}/cm/{school}/courses/search/$filters"
        return f"{address}?{urlencode(query, safe=',')}"

    def following(self, url: str, document: object) -> list[tuple[str, int]]:
        """Return the pages that follow from the page at `url`, each with its number in its list.

        The first page of a list leads to the others; the very first leads to the other lists as
        well.

        Raises:
            Permanent: the response is no list of courses, or is empty where it should not be.
        """
        query = parse_qs(urlsplit(url).query)
        catalog_id, skip = query.get("catalogId", [""])[0], int(query.get("skip", ["0"])[0])
        length = _length(document, url, skip)
        if skip:
            return []
        rest = range(PAGE_SIZE, length, PAGE_SIZE)
        pages = [(self.page_url(catalog_id, at), at // PAGE_SIZE + 1) for at in rest]
        if catalog_id == self.catalog_ids[0]:
            pages += [(self.page_url(other, 0), 1) for other in self.catalog_ids[1:]]
        return pages


def catalogs_url(school_id: str, *, api_base: str = API_BASE) -> str:
    """Return the URL of the list of a school's catalogues."""
    return f"{api_base}/ca/{quote(school_id, safe='')}/catalogs"


def catalog_ids(document: object) -> tuple[str, ...]:
    """Return the ids in a list of catalogues; none if it is no such list, or empty."""
    if isinstance(document, Mapping):
        inside = cast("Mapping[str, object]", document)
        listed = inside.get("data", inside.get("catalogs"))
        document = listed if listed is not None else list(inside.values())
    if isinstance(document, Mapping):  # keyed by id, another form of the API
        document = list(cast("Mapping[str, object]", document).values())
    if not isinstance(document, list):
        return ()
    items = [cast("Mapping[str, object]", item) for item in cast("list[object]", document) if isinstance(item, Mapping)]
    ids = (item.get("id", item.get("_id")) for item in items)
    return tuple(dict.fromkeys(id_ for id_ in ids if isinstance(id_, str) and id_.strip()))


def _length(document: object, url: str, skip: int) -> int:
    answer = cast("Mapping[str, object]", document if isinstance(document, Mapping) else {})
    length, items = answer.get("listLength"), answer.get("data")
    if not isinstance(length, int) or isinstance(length, bool) or not isinstance(items, list):
        cure = "check api.school_id, api.catalog_ids and api.api_base of the recipe"
        raise Permanent(f"{url} is no list of courses: it has no listLength or no data; {cure}", code="api_shape")
    if not 0 <= length <= MAX_COURSES:
        raise Permanent(f"{url} reports {length} courses; the limit is {MAX_COURSES}", code="api_shape")
    if not cast("Sequence[object]", items) and skip < length:
        message = f"{url} has no courses, though {length} are reported and {skip} were skipped"
        raise Permanent(message, code="api_empty")
    return length
