"""Read JSON items by paths of a source's config: `data.list`, `attributes.title`, `links[0].url`.

A path is keys with dots between them and positions in brackets; the empty path is the value itself.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

from ingestion_pipeline.reading.html.links import linked_page
from ingestion_pipeline.reading.structured.items import MAX_RECORDS, Item, ItemPage, named_items
from ingestion_pipeline.reading.text.decoding import clean_text, decode
from ingestion_pipeline.tasks.errors import Permanent, Transient

MAX_PATH_CHARACTERS = 500
MAX_KEYS_SHOWN = 10
LONGEST_WORD = len("-Infinity")  # of those that mean nothing when they are cut

_STEP = re.compile(r"(?:(?<=.)\.|^)([^.\[\]\s][^.\[\]]*)|\[([0-9]{1,6})\]")

Step = str | int


class BadJsonPath(ValueError):
    """A path that cannot be followed; the message holds it."""


@dataclass(frozen=True, slots=True)
class JsonPath:
    """A path from a JSON value to one inside it."""

    text: str
    steps: tuple[Step, ...]

    @classmethod
    def of(cls, text: str) -> "JsonPath":
        """Parse the path; raise `BadJsonPath` if it is not of the form `a.b[0].c`."""
        steps: list[Step] = []
        position = 0
        while position < len(text) <= MAX_PATH_CHARACTERS:
            step = _STEP.match(text, position)
            if step is None:
                break
            steps.append(step[1] if step[2] is None else int(step[2]))
            position = step.end()
        if position < len(text):
            raise BadJsonPath(f"{text[:MAX_PATH_CHARACTERS]!r} is no path such as data.items[0].name")
        return cls(text, tuple(steps))

    def follow(self, value: object) -> object:
        """Return the value at the path's end; None if the path does not exist."""
        for step in self.steps:
            value = _inside(value, step)
        return value


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonReader:
    """Paths of the items, and of the fields in an item: the first that is set."""

    items: JsonPath
    fields: Mapping[str, Sequence[JsonPath]]
    required: Sequence[str] = ()
    next: JsonPath | None = None

    def read(self, body: bytes, *, url: str = "", content_type: str | None = None) -> ItemPage:
        """Read every item of the document; an empty list is an empty feed.

        Raises:
            Permanent: `not_json`, `no_items` or `no_fields`; paths and document do not fit.
            Transient: `truncated`; half a document is not accepted.
        """
        document = read_document(body, content_type)
        values = self._values(document)
        items = [self._item(value) for value in values[: MAX_RECORDS + 1]]
        first = f"the first has {_shape(values[0])}" if values else ""
        reading = named_items(items, self.required, cure=f"{first}; check fields in the config")
        return ItemPage(reading=reading, base_url=url, next_url=self._next_url(document, url))

    def next_url(self, body: bytes, *, url: str) -> str | None:
        """Return the address at the path `next`; None if it is null, absent or no web address."""
        return self._next_url(read_document(body, None), url) if self.next else None

    def _next_url(self, document: object, url: str) -> str | None:
        return linked_page(url, _text(self.next.follow(document))) if self.next else None

    def _values(self, document: object) -> list[object]:
        values = self.items.follow(document)
        if isinstance(values, list):
            return cast("list[object]", values)
        where = f"items path {self.items.text!r}" if self.items.text else "the empty items path"
        raise Permanent(
            f"{where} leads to {_shape(values)}, not to a list; the document has {_shape(document)}", code="no_items"
        )

    def _item(self, value: object) -> Item:
        values = {
            name: next(filter(None, (_text(path.follow(value)) for path in paths)), None)
            for name, paths in self.fields.items()
        }
        return {name: text for name, text in values.items() if text is not None}


def _inside(value: object, step: Step) -> object:
    if isinstance(step, str):
        return cast("dict[str, object]", value).get(step) if isinstance(value, dict) else None
    items = cast("list[object]", value) if isinstance(value, list) else []
    return items[step] if step < len(items) else None


def read_document(body: bytes, content_type: str | None) -> object:
    """Parse the document, with numbers as they are written: 1.10 stays 1.10.

    Raises:
        Permanent: `not_json`; it is something else, or nested beyond reason.
        Transient: `truncated`; half a document is not accepted.
    """
    text = decode(body, content_type).lstrip("\ufeff")
    try:
        return json.loads(text, parse_int=str, parse_float=str, parse_constant=str)
    except RecursionError as error:
        raise Permanent("JSON nested beyond reason; it is not read", code="not_json") from error
    except json.JSONDecodeError as error:
        if _is_cut_off(text.strip(), error):
            raise Transient(
                f"the JSON breaks off after {len(text)} characters; it is fetched again", code="truncated"
            ) from error
        begins = clean_text(text[:60])
        raise Permanent(
            f"not JSON but text that begins {begins!r}; check the source's address", code="not_json"
        ) from error


def _is_cut_off(text: str, error: json.JSONDecodeError) -> bool:
    """Return whether the text is the beginning of JSON, and wrong only in that it ends."""
    if not text:
        return True
    is_json = text[0] in "{[" and not error.msg.startswith("Extra data")
    left = len(error.doc.rstrip()) - error.pos
    in_word = left <= LONGEST_WORD and text[-1] not in "}]"
    return is_json and (left <= 0 or in_word or error.msg.startswith("Unterminated string"))


def _text(value: object) -> str | None:
    if isinstance(value, bool):
        return str(value).lower()
    return clean_text(value) if isinstance(value, str) else None


def _shape(value: object) -> str:
    """Return a description of a value, for people who look for the right path."""
    if isinstance(value, dict):
        keys = [key[:40] for key in list(cast("dict[str, object]", value))[:MAX_KEYS_SHOWN]]
        return f"the keys {keys}"
    if isinstance(value, list):
        return f"a list of {len(cast('list[object]', value))}"
    return "nothing" if value is None else f"the value {str(value)[:40]!r}"
