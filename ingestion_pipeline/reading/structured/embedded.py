"""Machine-readable data of a page: JSON-LD, microdata, the state of its scripts, and meta tags.

A thing is a mapping in the form of JSON-LD, whichever way the page wrote it. JSON is read as pages ship it:
in comments, with trailing commas, half JavaScript, or cut off. What is no valid JSON is read by a lenient parser,
within caps on size and depth.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from html import unescape
from typing import TYPE_CHECKING, cast

from ingestion_pipeline.reading.structured.items import Problem

if TYPE_CHECKING:
    from selectolax.lexbor import LexborHTMLParser, LexborNode


MAX_JSON_CHARACTERS = 5_000_000
MAX_JSON_DEPTH = 100  # real state of large shops has 40
MAX_FORGIVEN_CHARACTERS = 1_000_000  # the forgiving reader needs a second for these

_WRAPPING = re.compile(
    r"\A(?:\s|\ufeff|<!--+|//\s*<!\[CDATA\[|/\*\s*<!\[CDATA\[\s*\*/|<!\[CDATA\[|//[^\n]*\n|/\*.*?\*/)+", re.DOTALL
)
_CLOSING = re.compile(r"(?:(?://\s*+)?+(?:\]\]>|(?<!-)--++>)|/\*\s*+\]\]>\s*+\*/)\Z")
_MAX_CLOSING = 200  # characters of one end of a comment or of a CDATA section
_BLANKS = re.compile(r"(?:[\s\ufeff]+|//[^\n]*|/\*.*?\*/|<!--|-->)*", re.DOTALL)
_WORD = re.compile(r"[A-Za-z_$][\w$]*")
_NUMBER = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")
_PLAIN = {'"': re.compile(r'[^"\\]*'), "'": re.compile(r"[^'\\]*"), "`": re.compile(r"[^`\\]*")}
_AFTER_STRING = re.compile(r"\s*(?:[,:}\]]|\Z|//|/\*|\"[@\w:.-]{1,60}\"\s*:)")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "0": "", "\n": ""}
_WORDS: Mapping[str, object] = {"true": True, "false": False} | dict.fromkeys(("null", "undefined", "NaN", "Infinity"))


class BadJson(ValueError):
    """Nothing in the text can be read as JSON; the message says where it broke."""


def read_json(text: str) -> object:
    """Parse the text, tolerating what pages get wrong; raise `BadJson` if it is no JSON, too long or too deep."""
    if len(text) > MAX_JSON_CHARACTERS:
        raise BadJson(f"it has {len(text)} characters, more than {MAX_JSON_CHARACTERS}")
    text = _without_tail(_WRAPPING.sub("", text))
    if text.startswith(("{&quot;", "[{&quot;", "[&quot;")):
        text = unescape(text)
    try:
        return cast("object", json.loads(text, strict=False, parse_constant=_nothing))
    except RecursionError as error:
        raise BadJson("it is nested beyond reason") from error
    except ValueError:
        return read_value(text, 0)[0]


def _without_tail(text: str) -> str:
    """Return the text without the blanks, semicolons and ends of comments at its end."""
    while True:
        text = text.rstrip().rstrip(";")
        closing = _CLOSING.search(text[-_MAX_CLOSING:])
        if closing is not None:
            text = text[: len(text) - len(closing[0])]
        elif not text[-1:].isspace():
            return text


def read_value(text: str, position: int) -> tuple[object, int]:
    """Return the value at the position in a script, and where it ends; raise `BadJson` if there is none."""
    try:
        return json.JSONDecoder(strict=False, parse_constant=_nothing).raw_decode(text, position)
    except RecursionError as error:
        raise BadJson("it is nested beyond reason") from error
    except ValueError:
        if len(text) - position > MAX_FORGIVEN_CHARACTERS:
            text = text[: position + MAX_FORGIVEN_CHARACTERS]
        reader = _Forgiving(text, position)
        return reader.value(0), reader.position


def _nothing(_word: str) -> None:
    """Return None: NaN and Infinity are no values."""


def _number(text: str) -> float | None:
    """Return the value; a number of more digits than Python reads is none."""
    try:
        return int(text) if text.lstrip("+-").isdecimal() else float(text)
    except ValueError:
        return None


class _Forgiving:
    """A parser of JSON, JSON5 and plain JavaScript data; a missing end is tolerated."""

    def __init__(self, text: str, position: int) -> None:
        self._text = text
        self.position = position

    def value(self, depth: int) -> object:
        if depth > MAX_JSON_DEPTH:
            raise BadJson("it is nested beyond reason")
        match self._next():
            case "{":
                return self._object(depth)
            case "[":
                return self._array(depth)
            case '"' | "'" | "`" as quote:
                return self._string(quote)
            case _:
                return self._word()

    def _next(self) -> str:
        """Return the next significant character; empty at the end."""
        blank = _BLANKS.match(self._text, self.position)
        self.position = blank.end() if blank else self.position
        return self._text[self.position : self.position + 1]

    def _object(self, depth: int) -> dict[str, object]:
        self.position += 1
        members: dict[str, object] = {}
        while (sign := self._next()) not in {"}", ""}:
            if sign == ",":
                self.position += 1
                continue
            key = self._string(sign) if sign in _PLAIN else self._key()
            if self._next() != ":":
                if not self._text[self.position :].strip():
                    break
                raise self._broken("a colon")
            self.position += 1
            members[key] = self.value(depth + 1)
        self.position += 1
        return members

    def _array(self, depth: int) -> list[object]:
        self.position += 1
        elements: list[object] = []
        while (sign := self._next()) not in {"]", ""}:
            if sign == ",":
                self.position += 1
                continue
            elements.append(self.value(depth + 1))
        self.position += 1
        return elements

    def _key(self) -> str:
        word = _WORD.match(self._text, self.position) or _NUMBER.match(self._text, self.position)
        if word is None:
            raise self._broken("a key")
        self.position = word.end()
        return word[0]

    def _string(self, quote: str) -> str:
        parts: list[str] = []
        self.position += 1
        while self.position < len(self._text):
            plain = _PLAIN[quote].match(self._text, self.position)
            if plain is not None:
                parts.append(plain[0])
                self.position = plain.end()
            if self._text[self.position : self.position + 1] == "\\":
                parts.append(self._escaped())
                continue
            self.position += 1
            # A quote in the middle of a sentence was meant as one: nobody escaped it.
            if quote != '"' or _AFTER_STRING.match(self._text, self.position):
                break
            parts.append(quote)
        return "".join(parts)

    def _escaped(self) -> str:
        sign = self._text[self.position + 1 : self.position + 2]
        length = {"u": 4, "x": 2}.get(sign, 0)
        code = self._text[self.position + 2 : self.position + 2 + length]
        self.position += 2 + length
        if length:
            return chr(int(code, 16)) if re.fullmatch("[0-9A-Fa-f]+", code) else code
        return _ESCAPES.get(sign, sign)

    def _word(self) -> object:
        if number := _NUMBER.match(self._text, self.position):
            self.position = number.end()
            return _number(number[0])
        word = _WORD.match(self._text, self.position)
        if word is None or word[0] not in _WORDS:
            raise self._broken("a value")
        self.position = word.end()
        return _WORDS[word[0]]

    def _broken(self, expected: str) -> BadJson:
        there = self._text[self.position : self.position + 20]
        return BadJson(f"at character {self.position} {expected} was expected, not {there!r}")


MAX_ITEMS = 5_000
MAX_MICRODATA_DEPTH = 30  # items inside items; an `itemref` may lead in a circle

_ADDRESSES = {"a": "href", "area": "href", "link": "href", "object": "data"} | dict.fromkeys(
    ("audio", "embed", "iframe", "img", "source", "track", "video"), "src"
)
_VALUES = {"data": "value", "meter": "value", "time": "datetime"}
_UNSEEN = frozenset({"script", "style", "template", "noscript"})


def microdata_of(tree: LexborHTMLParser) -> Iterator[dict[str, object]]:
    """Yield every item of the page that is no property of another."""
    for node in tree.css("[itemscope]")[:MAX_ITEMS]:
        if "itemprop" not in node.attrs:
            yield _item(tree, node, 0)


def _item(tree: LexborHTMLParser, node: LexborNode, depth: int) -> dict[str, object]:
    item: dict[str, object] = {}
    if types := (node.attrs.get("itemtype") or "").split():
        item["@type"] = types[0] if len(types) == 1 else types
    if identity := (node.attrs.get("itemid") or "").strip():
        item["@id"] = identity
    if depth >= MAX_MICRODATA_DEPTH:
        return item
    for owner in _properties(tree, node):
        value = _value(tree, owner, depth)
        for name in (owner.attrs.get("itemprop") or "").split():
            _add(item, name, value)
    return item


def _properties(tree: LexborHTMLParser, node: LexborNode) -> Iterator[LexborNode]:
    """Yield the elements with a property of the item: its own, then those it refers to."""
    yield from _below(node)
    for identity in (node.attrs.get("itemref") or "").split()[:MAX_MICRODATA_DEPTH]:
        quoted = identity.replace("\\", "\\\\").replace('"', '\\"')
        if referred := tree.css_first(f'[id="{quoted}"]'):
            yield from [referred] if "itemprop" in referred.attrs else _below(referred)


def _below(node: LexborNode) -> Iterator[LexborNode]:
    """Yield the properties inside the element, but none of items inside it."""
    waiting = _children(node)
    while waiting:
        child = waiting.pop()
        if "itemprop" in child.attrs:
            yield child
        if "itemscope" not in child.attrs:
            waiting.extend(_children(child))


def _children(node: LexborNode) -> list[LexborNode]:
    """Return its elements, last first."""
    return [child for child in node.iter() if child.is_element_node][::-1]


def _value(tree: LexborHTMLParser, node: LexborNode, depth: int) -> object:
    if "itemscope" in node.attrs:
        return _item(tree, node, depth + 1)
    if (content := node.attrs.get("content")) is not None:
        return content.strip()
    tag = node.tag or ""
    if tag == "input":  # what a SearchAction asks for
        return {"valueRequired": "required" in node.attrs, "valueName": node.attrs.get("name") or ""}
    if tag in _ADDRESSES:
        return (node.attrs.get(_ADDRESSES[tag]) or "").strip()
    if stated := node.attrs.get(_VALUES.get(tag, "")):
        return stated.strip()
    return " ".join(_text(node).split())


def _text(node: LexborNode) -> str:
    parts: list[str] = []
    for child in node.traverse(include_text=True):
        parent = child.parent
        if child.tag == "-text" and (parent is None or parent.tag not in _UNSEEN):
            parts.append(child.text_content or "")
        elif child.tag in {"br", "p", "div", "li"}:
            parts.append(" ")
    return "".join(parts)


def _add(item: dict[str, object], name: str, value: object) -> None:
    if name not in item:
        item[name] = value
        return
    existing = item[name]
    if isinstance(existing, list):
        existing.append(value)  # pyright: ignore[reportUnknownMemberType]  a list of whatever came
    else:
        item[name] = [existing, value]


MAX_SCRIPTS = 200
MAX_ASSIGNMENTS = 100  # of one script that are tried; the state comes before the program
MAX_META = 500
MAX_THINGS = 200_000  # of any type: a record holds several
MAX_DEPTH = 60

_SCHEMA = re.compile(r"(?:https?://(?:www\.)?schema\.org/|schema:)")
_STATE_ATTRIBUTES = ("data-page", "data-props", "data-react-props", "data-initial-state")
_ASSIGNED = re.compile(
    r"(?:^|[\s;,{}(])(?:(?:var|let|const)\s+)?"
    r"([A-Za-z_$][\w$]*(?:\.[\w$]+|\[(?:'[^']*'|\"[^\"]*\")\])*)\s*=\s*"
    r"(?:(?=[\[{])|JSON\.parse\(\s*(?=[\"']))"
)

Thing = Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScriptState:
    """Data of a script: the name it has on the page, and its value."""

    name: str
    data: object


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddedData:
    """All machine-readable data of a page, in page order; broken parts are problems."""

    json_ld: tuple[Thing, ...] = ()
    microdata: tuple[Thing, ...] = ()
    states: tuple[ScriptState, ...] = ()
    meta: tuple[tuple[str, str], ...] = ()
    problems: tuple[Problem, ...] = ()

    def things(self, *types: str) -> Iterator[Thing]:
        """Yield every thing of one of the schema.org types, however deep; without types, all."""
        for thing in things_in([*self.json_ld, *self.microdata]):
            if not types or types_of(thing) & set(types):
                yield thing

    def meta_content(self, *names: str) -> str | None:
        """Return the first content that is not blank, of the first name that has any."""
        return next((content for name in names for key, content in self.meta if key == name and content), None)


def embedded_of(tree: LexborHTMLParser) -> EmbeddedData:
    """Read the data of a tree that was not cleaned: scripts are still in it."""
    problems: list[Problem] = []
    return EmbeddedData(
        json_ld=tuple(_json_ld(tree, problems)),
        microdata=tuple(microdata_of(tree)),
        states=tuple(_states(tree)),
        meta=tuple(_meta(tree)),
        problems=tuple(problems),
    )


def things_in(values: Iterable[object]) -> Iterator[Thing]:
    """Yield every mapping with a type among the values and inside them, outer ones first."""
    waiting: list[tuple[object, int]] = [(value, 0) for value in reversed(list(values))]
    count = 0
    while waiting and count < MAX_THINGS:
        value, depth = waiting.pop()
        if isinstance(value, Mapping):
            thing = cast("Thing", value)
            if "@type" in thing:
                count += 1
                yield thing
            inside = list(thing.values())
        elif isinstance(value, list):
            inside = cast("list[object]", value)
        else:
            continue
        if depth < MAX_DEPTH:
            waiting.extend((child, depth + 1) for child in reversed(inside))


def types_of(thing: Thing) -> set[str]:
    """Return the short names of its types: `Course` for `http://schema.org/Course`."""
    types = thing.get("@type")
    listed = cast("list[object]", types) if isinstance(types, list) else [types]
    return {_SCHEMA.sub("", name) for name in listed if isinstance(name, str)}


def _json_ld(tree: LexborHTMLParser, problems: list[Problem]) -> Iterator[Thing]:
    # `type="application/ld+json; charset=utf-8"` and capitals are in use
    scripts = tree.css("script[type*='ld+json' i]")[:MAX_SCRIPTS]
    for number, script in enumerate(scripts, 1):
        text = script.text()
        if not text.strip():
            continue
        try:
            value = read_json(text)
        except BadJson as error:
            problems.append(Problem(where=f"JSON-LD script {number}", message=str(error), code="bad_json_ld"))
            continue
        listed = cast("list[object]", value) if isinstance(value, list) else [value]
        yield from (cast("Thing", item) for item in listed if isinstance(item, dict))


def _states(tree: LexborHTMLParser) -> Iterator[ScriptState]:
    for script in tree.css("script")[:MAX_SCRIPTS]:
        kind = (script.attrs.get("type") or "").partition(";")[0].strip().lower()
        text = script.text()
        if kind in {"application/json", "text/json"}:
            name = script.attrs.get("id") or script.attrs.get("data-name") or "application/json"
            yield from _whole(name, text)
        elif kind in {"", "text/javascript", "application/javascript", "module"} and "=" in text:
            yield from _assigned(text)
    for attribute in _STATE_ATTRIBUTES:
        for node in tree.css(f"[{attribute}]")[:MAX_SCRIPTS]:
            yield from _whole(attribute, node.attrs.get(attribute) or "")


def _whole(name: str, text: str) -> Iterator[ScriptState]:
    if text.strip()[:1] in {"{", "[", "<", "/"}:
        with suppress(BadJson):
            yield ScriptState(name=name, data=read_json(text))


def _assigned(script: str) -> Iterator[ScriptState]:
    """Yield objects and lists that a script assigns to a name; code is skipped."""
    position = 0
    for _ in range(MAX_ASSIGNMENTS):
        if (match := _ASSIGNED.search(script, position)) is None:
            return
        position = match.end()
        try:
            data, position = read_value(script, position)
        except BadJson:
            continue
        if isinstance(data, str):  # of JSON.parse
            try:
                data = json.loads(data)
            except (ValueError, RecursionError):
                continue
        if data and isinstance(data, dict | list):
            yield ScriptState(name=match[1], data=cast("object", data))


def _meta(tree: LexborHTMLParser) -> Iterator[tuple[str, str]]:
    for node in tree.css("meta[content]")[:MAX_META]:
        name = node.attrs.get("property") or node.attrs.get("name")
        content = node.attrs.get("content")
        if name and content is not None:
            yield name.strip(), content.strip()
