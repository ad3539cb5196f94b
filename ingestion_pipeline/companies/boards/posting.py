"""A board's posting with its keys (board, URL, text), content hash, quality and serialisation."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from decimal import Decimal
from hashlib import sha256
from typing import Any, cast

import orjson
from pydantic import TypeAdapter

from ingestion_pipeline.companies.company_names import fingerprint, stated_company, url_key
from ingestion_pipeline.companies.company_states import Completeness
from ingestion_pipeline.companies.job_listing import Listing, listing_as_dict
from ingestion_pipeline.companies.salary import salary_as_dict
from ingestion_pipeline.reading.structured.items import ParsedFeed, Problem
from ingestion_pipeline.sources import Source
from ingestion_pipeline.tasks.errors import storable

MAX_KEY_CHARACTERS = 200  # a PostgreSQL index entry has at most 2,700 bytes
MINIMAL_TEXT = 100  # characters; a listing with a description no longer than this is thin
LONG_TEXT = 200  # characters of a description that identify a posting without its company's name

_REQUIREMENTS = re.compile(
    r"require|qualification|what you(?:'ll)? (?:bring|need)|you have|you bring|must.have|experience"
    r"|skills|anforderung|profil|exigences|requisitos",
    re.IGNORECASE,
)

# The columns of `job_listings` that an evaluation reads: a change of one has the listing evaluated again.
EVALUATED_COLUMNS = (
    *("title", "company_name", "location", "other_locations", "remote", "description", "salary"),
    *("posted_at", "employment_type"),
)
# Further columns whose change is stored. Not the URL: some boards put a session into it.
STORED_COLUMNS = ("department", "company_website")
_SAME_NAMED = (  # in a listing and its columns
    *("title", "url", "location", "department", "employment_type", "description"),
    *("posted_at", "valid_until", "company_website"),
)
# Fields that must not vanish from most listings of a board at once, by their code.
WATCHED_FIELDS = {"t": "title", "u": "url", "d": "description", "l": "location"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Posting:
    """A listing as one board states it; `stated` has a code for each watched field it has."""

    listing: Listing
    company: str | None
    external_key: str
    url_key: str | None
    fingerprint: str
    content_hash: str
    stated: str

    @property
    def is_distinctive(self) -> bool:
        """Return whether its text alone identifies the same posting on another board."""
        words = self.listing.description or ""
        return len(words) >= LONG_TEXT or bool(words and self.company)

    @property
    def columns(self) -> dict[str, Any]:
        """Return what it states as columns of `job_listings`."""
        listing = self.listing
        return {name: getattr(listing, name) for name in _SAME_NAMED} | {
            "company_name": self.company,
            "other_locations": list(listing.other_locations) or None,
            "remote": listing.remote.value if listing.remote else None,
            "salary": dict(salary_as_dict(listing.salary)) if listing.salary else None,
        }


def posting_of(listing: Listing, source: Source) -> Posting:
    """Return the listing with its keys; a listing without a company belongs to the board's."""
    company = stated_company(listing.company) or source.company_id
    words = fingerprint(listing.title, company, listing.description)
    address = url_key(listing.url) if listing.url else None
    stated = {"t": listing.title, "u": listing.url, "d": listing.description, "l": listing.location}
    posting = Posting(
        listing=listing,
        company=company,
        external_key=_external_key(listing, address, words),
        url_key=address,
        fingerprint=words,
        content_hash="",
        stated="".join(code for code, text in stated.items() if text),
    )
    columns = posting.columns
    if listing.posted_is_relative:
        columns["posted_at"] = None  # it changes with every poll
    return replace(posting, content_hash=content_hash(columns, STORED_COLUMNS))


def content_hash(columns: Mapping[str, Any], further: Sequence[str] = ()) -> str:
    """Return the hash of the columns that an evaluation reads, and of further ones.

    The hash of a listing is of what an evaluation reads: every writer of these columns calls this. The hash of a
    posting decides whether a listing that is stored already is written again: a new column belongs to one of the two.
    Equal for equal values, whichever database they came from.
    """
    values = [columns.get(name) for name in (*EVALUATED_COLUMNS, *further)]
    # Only where there is one: most boards state none, and their hashes stay as they were.
    if (deadline := columns.get("valid_until")) is not None:
        values.append(deadline)
    return sha256(orjson.dumps(values, default=_text, option=orjson.OPT_SORT_KEYS)).hexdigest()


def quality_of(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Return the completeness level of a listing's columns and what it does not state."""
    expected = ("url", "company_name", "location", "description", "salary", "posted_at")
    text = columns.get("description") or ""
    has_text = len(text) > MINIMAL_TEXT
    level = Completeness.THIN
    if has_text and all(columns.get(name) for name in ("url", "title", "company_name")):
        level = Completeness.MINIMAL
        if columns.get("location") and columns.get("posted_at") and _REQUIREMENTS.search(text):
            level = Completeness.GOOD
    missing = [name for name in expected if not columns.get(name)]
    return {"level": level.value, "missing": missing}


def _external_key(listing: Listing, address: str | None, words: str) -> str:
    key = listing.external_id
    if key is None:
        place = (listing.location or "").casefold()
        key = f"url:{address}" if address else f"text:{_digest(words + place)}"
    return key if len(key) <= MAX_KEY_CHARACTERS else f"sha256:{_digest(key)}"


def _digest(text: str) -> str:
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _text(value: object) -> str:
    match value:
        case datetime():
            return value.isoformat()
        case Decimal():
            return str(value)
        case _:
            raise TypeError(f"{type(value).__name__} is no value of a listing")


MARK = b'"posted_is_relative"'  # once in every listing
_LISTINGS = TypeAdapter(list[Listing])


def feed_to_bytes(parsed: ParsedFeed[Listing]) -> bytes:
    """Serialise the parsed feed for the content store."""
    return orjson.dumps(
        {
            "is_complete": parsed.is_complete,
            "problems": [asdict(problem) for problem in parsed.problems],
            "notes": list(parsed.notes),
            "listings": [
                {name: _storable(value) for name, value in listing_as_dict(listing).items()}
                | {"posted_is_relative": listing.posted_is_relative}
                for listing in parsed.records
            ],
        }
    )


def feed_from_bytes(stored: bytes) -> ParsedFeed[Listing]:
    """Deserialise a feed that `feed_to_bytes` wrote."""
    document: dict[str, Any] = orjson.loads(stored)
    return ParsedFeed(
        records=_LISTINGS.validate_python(document["listings"]),
        problems=[Problem(**fields) for fields in document["problems"]],
        is_complete=document["is_complete"],
        notes=document["notes"],
    )


def _storable(value: Any) -> Any:  # noqa: ANN401 - a plain value of any field
    if isinstance(value, list):
        return [_storable(part) for part in cast("list[Any]", value)]
    return storable(value) if isinstance(value, str) else value
