"""Lenient JSON as pages ship it: in comments, with trailing commas, half JavaScript, or cut off.

Valid JSON is read as JSON; the rest by a lenient parser, within caps on size and depth.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from html import unescape
from typing import cast

MAX_CHARACTERS = 5_000_000
MAX_DEPTH = 100  # real state of large shops has 40
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
    """Parse the value of the text, tolerating what pages get wrong.

    Raises:
        BadJson: it is no JSON, too long or too deep.
    """
    if len(text) > MAX_CHARACTERS:
        raise BadJson(f"it has {len(text)} characters, more than {MAX_CHARACTERS}")
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
    """Parse the value at the position; return it and where it ends; for JSON inside a script.

    Raises:
        BadJson: there is none.
    """
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
        if depth > MAX_DEPTH:
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
