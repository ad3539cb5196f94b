"""Answer schemas: JSON schemas in the strict subset, and our own check of answers.

Strict means what servers enforce: every property required (what may be missing may be null), no
other properties. A keyword that is not checked here is refused where the schema is made, so that no
rule is silently left out.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import isinf
from typing import Any, NoReturn, cast

from ingestion_pipeline.tasks.errors import storable

MAX_DEPTH = 40  # of an answer; no record of ours has ten levels
NAMED_PROBLEMS = 8  # more do not help a model to mend its answer
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_KEYWORDS = frozenset(
    {"type", "properties", "required", "additionalProperties", "items", "enum", "const", "anyOf"}
    | {"$ref", "$defs", "title", "description", "minimum", "maximum", "minItems", "maxItems"}
)
Node = Mapping[str, Any]


class BadSchema(ValueError):
    """A schema that servers do not accept as strict; the message names the place and the cure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerSchema:
    """The required form of an answer; `name` is sent to the server."""

    name: str
    schema: Node
    hash: str = field(init=False)

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise BadSchema(f"{self.name!r} cannot name a schema: letters, digits, _ and -, 64 of them")
        if self.schema.get("type") != "object":
            raise BadSchema(f"schema {self.name!r}: the outermost type must be object")
        if problems := list(_unstrict(self.schema, "$", self.schema.get("$defs", {}))):
            raise BadSchema(f"schema {self.name!r}: " + "; ".join(problems))
        object.__setattr__(self, "hash", hashlib.sha256(self.as_text().encode()).hexdigest())

    def as_text(self) -> str:
        """Return the schema as JSON, the same for every order of its keys."""
        return json.dumps(self.schema, sort_keys=True, ensure_ascii=False)

    def problems(self, answer: object) -> tuple[str, ...]:
        """Return where the answer breaks the schema, without its values; empty if nowhere."""
        violations = _violations(answer, self.schema, "$", self.schema.get("$defs", {}), MAX_DEPTH)
        return tuple(problem for problem, _ in zip(violations, range(NAMED_PROBLEMS), strict=False))


def _unstrict(node: object, path: str, definitions: Node) -> Iterator[str]:
    """Yield what a strict server would refuse in a schema."""
    if not isinstance(node, Mapping):
        yield f"{path} is not a schema"
        return
    schema = cast("Node", node)
    yield from _unknown(schema, path)
    if "object" in _types(schema):
        yield from _unstrict_object(schema, path)
    if "array" in _types(schema) and "items" not in schema:
        yield f"{path} is an array without items"
    if "$ref" in schema and _defined(schema, definitions) is None:
        yield f"{path} refers to {schema['$ref']!r}, which $defs does not have"
    for inner, where in _parts(schema, path):
        yield from _unstrict(inner, where, definitions)


def _unknown(schema: Node, path: str) -> Iterator[str]:
    if keywords := sorted(schema.keys() - _KEYWORDS):
        yield f"{path} has {', '.join(keywords)}, which answers are not checked for; leave it out"
    if not {"type", "anyOf", "$ref", "enum", "const"} & schema.keys():
        yield f"{path} allows anything; give it a type"
    if names := [str(name) for name in _types(schema) if name not in _IS_A]:
        yield f"{path} has the type {', '.join(names)}; there are {', '.join(sorted(_IS_A))}"


def _unstrict_object(schema: Node, path: str) -> Iterator[str]:
    if schema.get("additionalProperties") is not False:
        yield f"{path} needs additionalProperties: false"
    optional = set(schema.get("properties", {})) ^ set(schema.get("required", ()))
    if optional:
        names = ", ".join(sorted(optional))
        yield f"{path} must require all its properties ({names}); what may be missing is nullable"


def _parts(schema: Node, path: str) -> Iterator[tuple[object, str]]:
    for keyword in ("properties", "$defs"):
        for name, inner in schema.get(keyword, {}).items():
            yield inner, f"{path}.{name}"
    if "items" in schema:
        yield schema["items"], f"{path}[]"
    for number, inner in enumerate(schema.get("anyOf", ())):
        yield inner, f"{path}|{number}"


def _types(schema: Node) -> Sequence[object]:
    types = schema.get("type", ())
    return [types] if isinstance(types, str) else list(types)


def _defined(schema: Node, definitions: Node) -> Node | None:
    return definitions.get(str(schema["$ref"]).removeprefix("#/$defs/"))


def _violations(value: object, schema: Node, path: str, definitions: Node, depth: int) -> Iterator[str]:
    if depth == 0:
        yield f"{path} is nested too deeply"
        return
    if "$ref" in schema:
        inner = cast("Node", _defined(schema, definitions))
        yield from _violations(value, inner, path, definitions, depth - 1)
        return
    yield from _none_of(value, schema, path, definitions, depth)
    types = _types(schema)
    if types and not any(_IS_A[str(name)](value) for name in types):
        yield f"{path} must be {' or '.join(map(str, types))}"
    elif isinstance(value, dict):
        yield from _in_object(cast("dict[str, object]", value), schema, path, definitions, depth)
    elif isinstance(value, list):
        yield from _in_array(cast("list[object]", value), schema, path, definitions, depth)
    elif isinstance(value, int | float):
        yield from _out_of_bounds(value, schema, path)


def _none_of(value: object, schema: Node, path: str, definitions: Node, depth: int) -> Iterator[str]:
    """Yield that the value is none of those listed; of choices, the problems of the closest."""
    choices = schema.get("anyOf", ())
    tried = [list(_violations(value, choice, path, definitions, depth - 1)) for choice in choices]
    if tried and all(tried):
        yield from min(tried, key=len)
    if "enum" in schema and not _is_among(value, schema["enum"]):
        yield f"{path} must be one of {json.dumps(schema['enum'], ensure_ascii=False)}"
    if "const" in schema and not _is_among(value, [schema["const"]]):
        yield f"{path} must be {json.dumps(schema['const'], ensure_ascii=False)}"


def _in_object(value: dict[str, object], schema: Node, path: str, definitions: Node, depth: int) -> Iterator[str]:
    properties: Node = schema.get("properties", {})
    for name in properties.keys() - value.keys():
        yield f"{path}.{name} is missing"
    for name in value.keys() - properties.keys():
        yield f"{path} may not have {name[:40]!r}"
    for name in properties.keys() & value.keys():
        yield from _violations(value[name], properties[name], f"{path}.{name}", definitions, depth - 1)


def _in_array(value: list[object], schema: Node, path: str, definitions: Node, depth: int) -> Iterator[str]:
    if len(value) < schema.get("minItems", 0):
        yield f"{path} must have at least {schema['minItems']} items"
    if len(value) > schema.get("maxItems", len(value)):
        yield f"{path} must have at most {schema['maxItems']} items"
    for number, item in enumerate(value):
        yield from _violations(item, schema["items"], f"{path}[{number}]", definitions, depth - 1)


def _out_of_bounds(value: float, schema: Node, path: str) -> Iterator[str]:
    if value < schema.get("minimum", value):
        yield f"{path} must be at least {schema['minimum']}"
    if value > schema.get("maximum", value):
        yield f"{path} must be at most {schema['maximum']}"


def _is_among(value: object, allowed: Sequence[object]) -> bool:
    # To Python 1 is True; to JSON it is not.
    return any(type(value) is type(candidate) and value == candidate for candidate in allowed)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_whole(value: object) -> bool:
    is_whole = isinstance(value, int) or (isinstance(value, float) and value.is_integer())
    return is_whole and not isinstance(value, bool)


_IS_A: Mapping[str, Callable[[object], bool]] = {
    "array": lambda value: isinstance(value, list),
    "boolean": lambda value: isinstance(value, bool),
    "integer": _is_whole,
    "null": lambda value: value is None,
    "number": _is_number,
    "object": lambda value: isinstance(value, dict),
    "string": lambda value: isinstance(value, str),
}


_FENCED = re.compile(r"```[A-Za-z0-9]*[ \t]*\n(.*)\n[ \t]*```", re.DOTALL)
_WRAPPED = re.compile(r"[^{}]*?(\{.*\})[^{}]*", re.DOTALL)


class NotJson(ValueError):
    """The text is no JSON object; the message says where it breaks."""


def parsed_object(text: str, *, may_chat: bool = False) -> dict[str, object]:
    """Return the JSON object of `text`; with `may_chat` text before and after it is ignored.

    Text in it is fit for every database: without NUL, without half characters.
    """
    body = text.strip()
    if fenced := _FENCED.fullmatch(body):
        body = fenced[1]
    elif may_chat and (wrapped := _WRAPPED.fullmatch(body)):
        body = wrapped[1]
    try:
        document: object = json.loads(
            body, object_pairs_hook=_without_repeats, parse_constant=_refuse_constant, parse_float=_finite
        )
    except RecursionError:
        raise NotJson("it is nested too deeply") from None
    except ValueError as error:
        raise NotJson(_where(error)) from None
    if not isinstance(document, dict):
        raise NotJson("it must be one JSON object")
    return cast("dict[str, object]", document)


def _where(error: ValueError) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg} at character {error.pos}"
    return str(error)


def _without_repeats(pairs: list[tuple[str, object]]) -> dict[str, object]:
    fields = {storable(name): _fit(value) for name, value in pairs}
    if len(fields) < len(pairs):
        raise ValueError("a field is there twice")  # which of them would be meant?
    return fields


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
