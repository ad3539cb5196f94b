"""What the demo's model says: right about one page of outcomes, and once wrong about the other.

On jobs it has opinions (see model_jobs.py). Its other answers fit whatever schema they are asked
in, as long as a record has the field `text`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

from ingestion_pipeline.demo.courses import PROGRAMMES, TIDAL_BIOLOGY, Programme
from ingestion_pipeline.demo.job_openings import (
    HIGH,
    LOW,
    MEDIUM,
    Opening,
    driftwood_openings,
    kestrel_openings,
)
from ingestion_pipeline.demo.model_server import Asked, Reply, Say, blank
from ingestion_pipeline.demo.state import DemoState, mutate

FIELDS = frozenset({"score", "skills_matched", "skills_missing", "summary"})
SCORES = {HIGH: 96, MEDIUM: 92, LOW: 57}
OTHERWISE = 40
OWN = ("Python", "PostgreSQL", "Kubernetes")
OTHERS = ("Terraform", "Kafka", "React", "TypeScript", "WordPress")


def is_about_jobs(schema: Mapping[str, Any]) -> bool:
    """Whether the question is how well a job fits."""
    return schema.get("properties", {}).keys() == FIELDS


def opinion(told: str) -> dict[str, Any] | None:
    """How well the job fits that the text is of; None if the demo has no such job."""
    known = [one for one in _openings() if one.title in told and one.text in told]
    if not known:
        return None
    job = known[0]
    return {
        "score": SCORES.get(job.outcome, OTHERWISE),
        "skills_matched": _quoted(job, OWN),
        "skills_missing": _quoted(job, OTHERS),
        "summary": f"The work of a {job.title.partition(',')[0].lower()} by the water.",
    }


def _quoted(job: Opening, names: tuple[str, ...]) -> list[dict[str, str]]:
    return [{"skill": name, "quote": name} for name in names if name in job.text]


def _openings() -> list[Opening]:
    """In every state of the site; what a mutation changed counts as it is then."""
    shipped = DemoState()
    return [*driftwood_openings(mutate(shipped)), *driftwood_openings(shipped), *kestrel_openings()]


INVENTED = ("navigate a research submarine under polar ice",)  # no page of the site says so
FIELD = "text"
CATEGORY_FIELD, CATEGORY = "competency_category", "outcomes"
# Fields that repeat the words of the page, here its title.
QUOTES = ("heading", f"{CATEGORY_FIELD}_evidence")
CONFIDENCE = 0.9

Node = Mapping[str, Any]


def demo_model(asked: Asked) -> Reply:
    """The outcomes of the page in question, and an invented one of the second; else nothing.

    Asked about a job, how well it fits.
    """
    told = asked.told
    if is_about_jobs(asked.schema) and (said := opinion(told)) is not None:
        return Say(text=json.dumps(said))
    page = next((one for one in PROGRAMMES if _is_about(one, told)), None)
    if page is None:
        return Say(text=json.dumps(blank(asked.schema)))
    answer = _Answer(page, told, asked.schema)
    return Say(text=json.dumps(answer.of(asked.schema), ensure_ascii=False))


def _is_about(page: Programme, told: str) -> bool:
    """Whether the page was shown, or a part of it."""
    return any(said in told for said in (page.title, *page.learned))


def _sentences(page: Programme) -> Sequence[str]:
    return (*page.learned, *INVENTED) if page is TIDAL_BIOLOGY else page.learned


class _Answer:
    """An answer in the form of a schema: every list of records has all, a single record is one."""

    def __init__(self, page: Programme, told: str, schema: Node) -> None:
        self._title = page.title
        self._sentences = _sentences(page)
        self._asked_about = next((one for one in INVENTED if one in told), page.learned[0])
        self._definitions = cast("Node", schema.get("$defs", {}))

    def of(self, schema: Node) -> Any:  # noqa: ANN401 - as the schema has it
        schema = self._resolved(schema)
        fields = cast("Node", schema.get("properties", {}))
        if FIELD in fields:
            return self._record(fields, self._asked_about)
        match _kind(schema):
            case "object":
                return {
                    name: self._title if name in QUOTES else self.of(inner)
                    for name, inner in fields.items()
                }
            case "array":
                return self._records(cast("Node", schema.get("items", {})))
            case kind:
                said = {"boolean": True, "integer": len(self._sentences), "number": CONFIDENCE}
                return said.get(str(kind), blank(schema, self._definitions))

    def _records(self, items: Node) -> list[Any]:
        fields = cast("Node", self._resolved(items).get("properties", {}))
        if FIELD not in fields:
            return []
        return [self._record(fields, one) for one in self._sentences]

    def _record(self, fields: Node, sentence: str) -> dict[str, Any]:
        return {name: self._field(name, inner, sentence) for name, inner in fields.items()}

    def _field(self, name: str, schema: Node, sentence: str) -> Any:  # noqa: ANN401 - as above
        inner = cast("Node", self._resolved(schema).get("properties", {}))
        if inner:  # a value with its proof
            return {key: self._field(name, one, sentence) for key, one in inner.items()}
        said = {FIELD: sentence, CATEGORY_FIELD: CATEGORY} | dict.fromkeys(QUOTES, self._title)
        if name not in said and _kind(schema) == "number":
            return CONFIDENCE
        return said.get(name, blank(schema, self._definitions))

    def _resolved(self, schema: Node) -> Node:
        """The schema itself, that which it refers to, or the first that is not null."""
        if "$ref" in schema:
            return self._definitions[str(schema["$ref"]).removeprefix("#/$defs/")]
        if "anyOf" in schema:
            some = [one for one in schema["anyOf"] if one.get("type") != "null"]
            return self._resolved(some[0]) if some else schema
        return schema


def _kind(schema: Node) -> str:
    """The type of the value, if it is not null."""
    kinds: Any = schema.get("type", "")
    if isinstance(kinds, str):
        return kinds
    return next(str(one) for one in kinds if one != "null")
