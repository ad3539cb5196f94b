"""The scripted answers of the demo's model: outcomes, one invented, and job assessments.

Its answers fit any schema whose records have the field `text`.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

from ingestion_pipeline.demo.courses import PROGRAMMES, TIDAL_BIOLOGY, Programme
from ingestion_pipeline.demo.job_openings import HIGH, LOW, MEDIUM, Opening, driftwood_openings, kestrel_openings
from ingestion_pipeline.demo.model_server import ModelRequest, Reply, Say, blank
from ingestion_pipeline.demo.state import DemoState, mutate

FIELDS = frozenset({"score", "skills_matched", "skills_missing", "summary"})
SCORES = {HIGH: 96, MEDIUM: 92, LOW: 57}
OTHERWISE = 40
OWN = ("Python", "PostgreSQL", "Kubernetes")
OTHERS = ("Terraform", "Kafka", "React", "TypeScript", "WordPress")


def is_about_jobs(schema: Mapping[str, Any]) -> bool:
    """Return whether the request asks how well a job fits."""
    return schema.get("properties", {}).keys() == FIELDS


def opinion(text: str) -> dict[str, Any] | None:
    """Return the assessment of the job in the text; None if the demo has no such job."""
    matches = [opening for opening in _openings() if opening.title in text and opening.text in text]
    if not matches:
        return None
    job = matches[0]
    return {
        "score": SCORES.get(job.outcome, OTHERWISE),
        "skills_matched": _quoted(job, OWN),
        "skills_missing": _quoted(job, OTHERS),
        "summary": f"The work of a {job.title.partition(',')[0].lower()} by the water.",
    }


def _quoted(job: Opening, names: tuple[str, ...]) -> list[dict[str, str]]:
    return [{"skill": name, "quote": name} for name in names if name in job.text]


def _openings() -> list[Opening]:
    """Return the jobs of every state of the site, mutated ones first."""
    shipped = DemoState()
    return [*driftwood_openings(mutate(shipped)), *driftwood_openings(shipped), *kestrel_openings()]


INVENTED = ("navigate a research submarine under polar ice",)  # no page of the site states it
FIELD = "text"
CATEGORY_FIELD, CATEGORY = "competency_category", "outcomes"
# Fields that repeat the words of the page, here its title.
QUOTES = ("heading", f"{CATEGORY_FIELD}_evidence")
CONFIDENCE = 0.9

Node = Mapping[str, Any]


def demo_model(request: ModelRequest) -> Reply:
    """Return the page's outcomes (the second with an invented one), a job's assessment, or an empty answer."""
    text = request.text
    if is_about_jobs(request.schema) and (assessment := opinion(text)) is not None:
        return Say(text=json.dumps(assessment))
    page = next((programme for programme in PROGRAMMES if _is_about(programme, text)), None)
    if page is None:
        return Say(text=json.dumps(blank(request.schema)))
    answer = _Answer(page, text, request.schema)
    return Say(text=json.dumps(answer.of(request.schema), ensure_ascii=False))


def _is_about(page: Programme, text: str) -> bool:
    """Return whether the text contains the page, or a part of it."""
    return any(phrase in text for phrase in (page.title, *page.learned))


class _Answer:
    """An answer in the form of a schema: lists have all records, a single record has one."""

    def __init__(self, page: Programme, text: str, schema: Node) -> None:
        self._title = page.title
        self._sentences: Sequence[str] = (*page.learned, *(INVENTED if page is TIDAL_BIOLOGY else ()))
        self._asked_about = next((sentence for sentence in INVENTED if sentence in text), page.learned[0])
        self._definitions = cast("Node", schema.get("$defs", {}))

    def of(self, schema: Node) -> Any:  # noqa: ANN401 - as the schema has it
        schema = self._resolved(schema)
        fields = cast("Node", schema.get("properties", {}))
        if FIELD in fields:
            return self._record(fields, self._asked_about)
        match _kind(schema):
            case "object":
                return {name: self._title if name in QUOTES else self.of(inner) for name, inner in fields.items()}
            case "array":
                return self._records(cast("Node", schema.get("items", {})))
            case kind:
                values = {"boolean": True, "integer": len(self._sentences), "number": CONFIDENCE}
                return values.get(str(kind), blank(schema, self._definitions))

    def _records(self, items: Node) -> list[Any]:
        fields = cast("Node", self._resolved(items).get("properties", {}))
        if FIELD not in fields:
            return []
        return [self._record(fields, sentence) for sentence in self._sentences]

    def _record(self, fields: Node, sentence: str) -> dict[str, Any]:
        return {name: self._field(name, inner, sentence) for name, inner in fields.items()}

    def _field(self, name: str, schema: Node, sentence: str) -> Any:  # noqa: ANN401 - as above
        inner = cast("Node", self._resolved(schema).get("properties", {}))
        if inner:  # a value with its proof
            return {key: self._field(name, part, sentence) for key, part in inner.items()}
        values = {FIELD: sentence, CATEGORY_FIELD: CATEGORY} | dict.fromkeys(QUOTES, self._title)
        if name not in values and _kind(schema) == "number":
            return CONFIDENCE
        return values.get(name, blank(schema, self._definitions))

    def _resolved(self, schema: Node) -> Node:
        """Return the schema, the one it refers to, or its first option that is not null."""
        if "$ref" in schema:
            return self._definitions[str(schema["$ref"]).removeprefix("#/$defs/")]
        if "anyOf" in schema:
            options = [option for option in schema["anyOf"] if option.get("type") != "null"]
            return self._resolved(options[0]) if options else schema
        return schema


def _kind(schema: Node) -> str:
    """Return the type of the value, if it is not null."""
    kinds: Any = schema.get("type", "")
    if isinstance(kinds, str):
        return kinds
    return next(str(kind) for kind in kinds if kind != "null")
