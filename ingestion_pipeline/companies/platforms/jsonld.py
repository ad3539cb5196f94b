"""Pages with schema.org/JobPosting data, as JSON-LD, microdata or a JSON document."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from ingestion_pipeline.companies.job_listing import Listing
from ingestion_pipeline.companies.platforms.fields import (
    MAX_PLACE_CHARACTERS,
    MAX_TITLE_CHARACTERS,
    ListingFields,
    as_list,
    date_of,
    description_of,
    joined,
    one_line,
    other_places,
    remote_in,
)
from ingestion_pipeline.companies.platforms.linked_pages import MAX_PAGES, BoardDefaults, read_defaults
from ingestion_pipeline.companies.platforms.protocol import JobBoard, JobPlatform
from ingestion_pipeline.companies.platforms.recognition import next_page_of, shows_part_of_list
from ingestion_pipeline.companies.salary import Salary, stated_salary
from ingestion_pipeline.pages.http.request import Request
from ingestion_pipeline.reading.html.links import absolute_link
from ingestion_pipeline.reading.structured.embedded import BadJson, read_embedded, read_json, things_in, types_of
from ingestion_pipeline.reading.structured.items import MAX_PROBLEMS, ParsedFeed, Problem
from ingestion_pipeline.reading.structured.organizations import is_profile
from ingestion_pipeline.reading.text.dates import DateReader
from ingestion_pipeline.reading.text.decoding import decode
from ingestion_pipeline.sources.config_reader import BadConfig, ConfigReader
from ingestion_pipeline.tasks.errors import Permanent, Transient

ACCEPT = "text/html, application/ld+json;q=0.9, */*;q=0.5"
POSTING = "JobPosting"
_MARKS = ("@value", "name", "value", "@id")


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonLdBoard(JobBoard):
    """A page, or a JSON-LD document."""

    defaults: BoardDefaults
    may_be_empty: bool

    def first_request(self) -> Request:
        """Return the request for the page itself."""
        if not self.defaults.requested_url:
            raise BadConfig("a source of jsonld needs an address; without one it reads bodies only")
        return Request(url=self.defaults.requested_url, accept=ACCEPT)

    def next_request(self, body: bytes, *, previous: Request, url: str = "") -> Request | None:
        """Return the page that the page's own pager links to; None at the end or limit."""
        address = _following(body, url or previous.url)
        if address is None or previous.page >= MAX_PAGES:
            return None
        if previous.page > 1 and not self._postings(decode(body), [], is_first=False):
            return None
        return Request(url=address, accept=ACCEPT, page=previous.page + 1)

    def read(
        self,
        bodies: Sequence[bytes],
        *,
        content_types: Sequence[str | None],
        urls: Sequence[str] = (),
        now: datetime | None = None,
    ) -> ParsedFeed[Listing]:
        """Return one listing per posting, in page order; duplicates on a page count once."""
        where = list(urls) or [self.defaults.url] * len(bodies)
        dates = DateReader(now=now, day_first=self.defaults.day_first)
        listings: list[Listing] = []
        problems: list[Problem] = []
        is_last_empty = False
        for n, (body, content_type, url) in enumerate(zip(bodies, content_types, where, strict=True)):
            postings = self._postings(decode(body, content_type), problems, is_first=n == 0)
            page_url = url if len(postings) == 1 else None
            parsed = [self._listing(ListingFields(posting), url, page_url, dates) for posting in postings]
            if parsed and all(listing is None for listing in parsed):
                raise Permanent(f"none of {len(parsed)} job postings has a title", code="no_fields")
            problems += [
                Problem(where=f"posting {n}", message="it has no title; the rest counts")
                for n, listing in enumerate(parsed)
                if listing is None
            ]
            listings += [listing for listing in parsed if listing is not None]
            is_last_empty = n > 0 and not parsed
        return ParsedFeed(
            records=list(dict.fromkeys(listings)),
            problems=problems[:MAX_PROBLEMS],
            is_complete=(
                bool(bodies)
                and not problems
                and not is_last_empty  # a linked page may have failed
                and not shows_part_of_list(bodies[-1])
                and _following(bodies[-1], where[-1]) in {None, *where}
                and self.defaults.holds_all(listings)
            ),
        )

    def _postings(self, text: str, problems: list[Problem], *, is_first: bool) -> list[Mapping[str, object]]:
        if not text.strip():
            raise Transient("the body is empty; it is fetched again", code="truncated")
        if text.lstrip("\ufeff \t\r\n")[:1] in {"{", "["}:
            postings = list(_stated(text))
        else:
            embedded = read_embedded(text)
            postings = list(embedded.things(POSTING))
            problems += embedded.problems
        if not postings and is_first and not self.may_be_empty:
            broken = f"; {problems[0].where}: {problems[0].message}" if problems else ""
            raise Permanent(
                f"the page states no {POSTING}{broken}; read it with the platform html, or set may_be_empty"
                " if it lists jobs only at times",
                code="no_job_posting",
            )
        return postings

    def _listing(self, item: ListingFields, url: str, page_url: str | None, dates: DateReader) -> Listing | None:
        title = one_line(_text(item, "title", "name"), most=MAX_TITLE_CHARACTERS)
        if title is None:
            return None
        address = absolute_link(url, _text(item, "url", "@id", "sameAs")) or page_url
        places = [place for entry in _listed(item, "jobLocation") if (place := _place(entry))]
        location = next(iter(places), None)
        return Listing(
            external_id=_text(item, "identifier") or address,
            title=title,
            url=address,
            location=location,
            posted_at=date_of(_text(item, "datePosted"), dates),
            description=description_of(item.markup("description", "description.@value")),
            company=_text(item, "hiringOrganization") or self.defaults.company,
            department=_text(item, "employmentUnit", "occupationalCategory", "industry"),
            employment_type=joined(*item.texts("employmentType")),
            remote=remote_in(*item.texts("jobLocationType"), location),
            salary=_salary(item),
            other_locations=other_places(location, places[1:]),
            # No board states a deadline relative to now.
            valid_until=date_of(_text(item, "validThrough"), DateReader(now=None, day_first=self.defaults.day_first)),
            company_website=_website(item, url),
        )


def _following(body: bytes, url: str) -> str | None:
    """Return the next page of a list; a JSON-LD document has none."""
    is_document = body.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] in {b"{", b"["}
    return None if is_document else next_page_of(body, url=url)


def _stated(text: str) -> Iterator[Mapping[str, object]]:
    try:
        document = read_json(text)
    except BadJson as error:
        raise Permanent(f"neither a page nor JSON-LD: {error}", code="not_json") from error
    things = things_in(as_list(document))
    yield from (thing for thing in things if POSTING in types_of(thing))


def _text(item: ListingFields, *names: str) -> str | None:
    """Return the first non-empty value: text, a number, a list of them, or a thing with a name."""
    for name in names:
        for value in as_list(item.values.get(name)):
            inside = ListingFields.of(value)
            marks = ("value", "name", "@id") if name == "identifier" else _MARKS
            text = inside.text(*marks) if inside.values else one_line(value)
            if text:
                return text
    return None


def _listed(item: ListingFields, name: str) -> list[ListingFields]:
    return [ListingFields.of(value) for value in as_list(item.values.get(name)) if value]


def _place(place: ListingFields) -> str | None:
    address = place.value("address")
    if isinstance(address, str):
        return one_line(address, most=MAX_PLACE_CHARACTERS)
    fields = ListingFields.of(next(iter(as_list(address)), None))
    stated = (_text(fields, name) for name in ("addressLocality", "addressRegion", "addressCountry"))
    return joined(*stated) or _text(place, "name")


def _website(item: ListingFields, url: str) -> str | None:
    """Return the hiring company's website: `url` before `sameAs`, without network profiles."""
    companies = _listed(item, "hiringOrganization")
    stated = (_text(company, name) for company in companies for name in ("url", "sameAs"))
    sites = (absolute_link(url, address) for address in stated)
    return next((site for site in sites if site and not is_profile(site)), None)


def _salary(item: ListingFields) -> Salary | None:
    for entry in _listed(item, "baseSalary"):
        value = ListingFields.of(entry.value("value"))
        inside = value if value.values else entry
        low = _text(inside, "minValue") or _text(inside, "value")
        salary = stated_salary(
            low,
            _text(inside, "maxValue"),
            currency=_text(entry, "currency") or _text(inside, "currency"),
            period=_text(inside, "unitText") or _text(entry, "unitText"),
        )
        if salary:
            return salary
    return None


def configure(url: str, config: Mapping[str, object]) -> JsonLdBoard:
    """Configure the page at `url`, or at `api_base` if that is set."""
    reader = ConfigReader("jsonld", config)
    defaults = read_defaults(url, reader, is_window=False)
    board = JsonLdBoard(defaults=defaults, may_be_empty=reader.flag("may_be_empty", default=False))
    reader.finish()
    return board


PLATFORM = JobPlatform(name="jsonld", version=3, honours_robots=True, configure=configure)
