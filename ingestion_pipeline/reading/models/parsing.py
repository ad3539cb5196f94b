"""The JSON in what a model wrote: as it stands, or fenced as in Markdown; strict all the same."""

from __future__ import annotations

import json
import re
from math import isinf
from typing import NoReturn, cast

from ingestion_pipeline.work.errors import storable

_FENCED = re.compile(r"```[A-Za-z0-9]*[ \t]*\n(.*)\n[ \t]*```", re.DOTALL)
_WRAPPED = re.compile(r"[^{}]*?(\{.*\})[^{}]*", re.DOTALL)


class NotJson(ValueError):
    """What was written is no JSON object; the message says where it ends to be one."""


def parsed_object(text: str, *, may_chat: bool = False) -> dict[str, object]:
    """The JSON object that `text` is; with `may_chat` there may be words before and after it.

    Text in it is fit for every database: without NUL, without half characters.
    """
    body = text.strip()
    if fenced := _FENCED.fullmatch(body):
        body = fenced[1]
    elif may_chat and (wrapped := _WRAPPED.fullmatch(body)):
        body = wrapped[1]
    try:
        found: object = json.loads(
            body,
            object_pairs_hook=_without_repeats,
            parse_constant=_refuse_constant,
            parse_float=_finite,
        )
    except RecursionError:
        raise NotJson("it is nested too deeply") from None
    except ValueError as error:
        raise NotJson(_where(error)) from None
    if not isinstance(found, dict):
        raise NotJson("it must be one JSON object")
    return cast("dict[str, object]", found)


def _where(error: ValueError) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg} at character {error.pos}"
    return str(error)


def _without_repeats(pairs: list[tuple[str, object]]) -> dict[str, object]:
    found = {storable(name): _fit(value) for name, value in pairs}
    if len(found) < len(pairs):
        raise ValueError("a field is there twice")  # which of them would be meant?
    return found


def _fit(value: object) -> object:
    if isinstance(value, str):
        return storable(value)
    if isinstance(value, list):
        return [_fit(item) for item in cast("list[object]", value)]
    return value  # an object inside was made fit before


def _finite(text: str) -> float:
    number = float(text)
    if isinf(number):
        raise ValueError("a number is too large")
    return number


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
