"""Scripted language models on loopback that speak OpenAI's protocol: the server, the demo's model, its two providers.

The same request gets the same answer, to the byte. Tests use the server for answers that no real model gives on
demand (refusals, cut-offs, garbage, missing features). One provider always answers, one fails on every other question.
"""

import itertools
import json
import threading
import time
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast

from ingestion_pipeline.demo import DEMO_SUFFIX
from ingestion_pipeline.demo.catalog_sites import PROGRAMMES, TIDAL_BIOLOGY, Programme
from ingestion_pipeline.demo.company_sites import (
    HIGH,
    LOW,
    MEDIUM,
    Opening,
    businesses,
    driftwood_openings,
    kestrel_openings,
)
from ingestion_pipeline.demo.content import (
    LOOPBACK,
    DemoState,
    DemoStateError,
    LoopbackHandler,
    mutate,
    read_state,
    serving,
)
from ingestion_pipeline.websites.business import Business

CHARS_PER_TOKEN = 4
MAX_QUESTION_BYTES = 20_000_000
RESPONSES, CHAT = "/v1/responses", "/v1/chat/completions"
FILES, BATCHES = "/v1/files", "/v1/batches"
# Features that a server may lack: an endpoint, or a response format.
ABILITIES = frozenset({"responses", "json_schema", "json_object", "batches"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest:
    """A request as it arrived."""

    path: str
    body: Mapping[str, Any]
    headers: Mapping[str, str]

    @property
    def model(self) -> str:
        """Return the requested model."""
        return str(self.body.get("model"))

    @property
    def form(self) -> Mapping[str, Any]:
        """Return the requested format of the answer; empty for plain text."""
        text: Any = self.body.get("text") or {}
        form = text.get("format") if self.path == RESPONSES else self.body.get("response_format")
        return cast("Mapping[str, Any]", form or {})

    @property
    def schema(self) -> Mapping[str, Any]:
        """Return the requested schema of the answer; empty if there is none."""
        form = self.form
        return cast("Mapping[str, Any]", form.get("json_schema", form).get("schema", {}))

    @property
    def text(self) -> str:
        """Return all text of the request, in order."""
        turns = cast("Sequence[Mapping[str, Any]]", self.body.get("input", self.body.get("messages")))
        texts = [str(self.body.get("instructions", "")), *(str(turn["content"]) for turn in turns)]
        return "\n".join(text for text in texts if text)

    @property
    def needs(self) -> str | None:
        """Return the ability that the request requires."""
        if self.path == RESPONSES:
            return "responses"
        kind = self.form.get("type")
        return str(kind) if kind in ABILITIES else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Say:
    """A text answer; `is_cut` if it ends at the token limit."""

    text: str = ""
    refusal: str | None = None
    is_cut: bool = False
    has_usage: bool = True
    cached_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Fail:
    """An error instead of an answer."""

    status: int
    message: str = "scripted failure"
    code: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True, kw_only=True)
class Garble:
    """Bytes that are no valid answer, with status 200."""

    body: bytes


Reply = Say | Fail | Garble
Script = Callable[[ModelRequest], Reply]


def blank(schema: Mapping[str, Any], definitions: Mapping[str, Any] | None = None) -> Any:  # noqa: ANN401
    """Return the emptiest value that a strict schema allows, null if possible."""
    references = cast("Mapping[str, Any]", schema.get("$defs", definitions or {}))
    if "$ref" in schema:
        return blank(references[str(schema["$ref"]).removeprefix("#/$defs/")], references)
    if "anyOf" in schema:
        choices = [blank(option, references) for option in schema["anyOf"]]
        return None if None in choices else choices[0]
    if "enum" in schema or "const" in schema:
        return schema.get("enum", [schema.get("const")])[0]
    kinds = schema.get("type", "object")
    kind = kinds if isinstance(kinds, str) else ("null" if "null" in kinds else kinds[0])
    if kind == "object":
        fields = cast("Mapping[str, Any]", schema.get("properties", {}))
        return {name: blank(inner, references) for name, inner in fields.items()}
    empty: Mapping[str, Any] = {"array": [], "string": "", "boolean": False, "null": None}
    return empty.get(kind, schema.get("minimum", 0))


class ScriptedModel:
    """A server for a `with` block on `port` (0: any free one); abilities in `without` get `refusal_status`."""

    def __init__(
        self, script: Script, *, port: int = 0, without: Collection[str] = (), refusal_status: int = 400
    ) -> None:
        self.port = port
        self._script = script
        self._without = frozenset(without)
        self._refusal_status = refusal_status
        self._requests: list[ModelRequest] = []
        self.batches = ScriptedBatches(self)
        self._lock = threading.Lock()
        self._running = ExitStack()

    @property
    def base_url(self) -> str:
        """Return the value for OPENAI_BASE_URL."""
        return f"http://{LOOPBACK}:{self.port}/v1"

    @property
    def requests(self) -> list[ModelRequest]:
        """Return every request so far, in order."""
        with self._lock:
            return list(self._requests)

    def __enter__(self) -> Self:
        self.port = self._running.enter_context(serving(self.port, partial(_Handler, self), name="demo-model"))
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._running.close()

    def has(self, ability: str) -> bool:
        """Return whether the server has the ability."""
        return ability not in self._without

    def reply(self, request: ModelRequest) -> tuple[int, Mapping[str, str], bytes]:
        """Return status, headers and body for a request."""
        with self._lock:
            self._requests.append(request)
        if request.needs not in self._without:
            return _sent(self._script(request), request)
        if request.needs == "responses":
            return _sent(Fail(status=404, message="Not Found"), request)
        message = "response_format.type: Input should be 'text' or 'json_object'"
        return _sent(Fail(status=self._refusal_status, message=message), request)


class ScriptedBatches:
    """The files and batches of a server; a batch is answered by the script when it was polled `polls_needed` times.

    `submitted` are the batches in the order of their submission, `answered` the ids of the lines of each that were
    answered: the provider's own count. `before_answer` is called before each request is answered.
    """

    def __init__(self, model: ScriptedModel) -> None:
        self.polls_needed = 1
        self.before_answer: Callable[[], object] = lambda: None
        self.requests = 0
        self.submitted: dict[str, dict[str, Any]] = {}
        self.answered: dict[str, list[str]] = {}
        self._files: dict[str, bytes] = {}
        self._numbers = itertools.count(1)
        self._model = model
        self._lock = threading.Lock()

    def upload(self, form: bytes) -> dict[str, Any]:
        """Store the JSON Lines of a multipart form."""
        with self._lock:
            return self._stored(form[form.index(b'{"custom_id"') :].split(b"\r\n--")[0])

    def _stored(self, content: bytes) -> dict[str, Any]:
        file_id = f"file-{next(self._numbers)}"
        self._files[file_id] = content
        return {"id": file_id, "object": "file", "bytes": len(content), "purpose": "batch"} | _CREATED

    def content(self, file_id: str) -> bytes | None:
        """Return the file; None if there is none."""
        return self._files.get(file_id)

    def delete(self, file_id: str) -> dict[str, Any]:
        """Delete the file."""
        return {"id": file_id, "object": "file", "deleted": self._files.pop(file_id, None) is not None}

    def submit(self, order: Mapping[str, Any]) -> dict[str, Any] | None:
        """Start a batch of a stored file; None if there is none."""
        with self._lock:
            if order["input_file_id"] not in self._files:
                return None
            batch_id = f"batch_{len(self.submitted) + 1}"
            self.submitted[batch_id] = {
                **{name: order.get(name) for name in ("endpoint", "input_file_id", "completion_window", "metadata")},
                "id": batch_id,
                "object": "batch",
                "created_at": int(time.time()),
                "status": "in_progress",
                "output_file_id": None,
                "error_file_id": None,
                "polls": 0,
            }
            return self.submitted[batch_id]

    def listed(self) -> dict[str, Any]:
        """Return every batch, the newest first."""
        return {"object": "list", "data": list(self.submitted.values())[::-1], "has_more": False}

    def poll(self, batch_id: str) -> dict[str, Any] | None:
        """Return the batch; None if there is none."""
        with self._lock:
            batch = self.submitted.get(batch_id)
            if batch is not None and batch["status"] == "in_progress":
                batch["polls"] += 1
                if batch["polls"] >= self.polls_needed:
                    self._complete(batch)
            return batch

    def cancel(self, batch_id: str) -> dict[str, Any] | None:
        """Cancel a batch that is not answered yet; return it."""
        with self._lock:
            batch = self.submitted.get(batch_id)
            if batch is not None and batch["status"] == "in_progress":
                batch["status"] = "cancelled"
            return batch

    def _complete(self, batch: dict[str, Any]) -> None:
        entries = [json.loads(line) for line in self._files[batch["input_file_id"]].splitlines()]
        replies = b"\n".join(json.dumps(self._answered(entry)).encode() for entry in entries)
        self.answered[batch["id"]] = [entry["custom_id"] for entry in entries]
        batch |= {"status": "completed", "output_file_id": self._stored(replies)["id"]}

    def _answered(self, entry: Mapping[str, Any]) -> dict[str, Any]:
        request = ModelRequest(path=entry["url"], body=entry["body"], headers={})
        status, _, body = self._model.reply(request)
        response = {"status_code": status, "request_id": entry["custom_id"], "body": json.loads(body)}
        return {"id": f"batch_req_{entry['custom_id']}", "custom_id": entry["custom_id"], "response": response}


_CREATED = {"created_at": 0, "filename": "batch.jsonl", "status": "processed"}


def _sent(reply: Reply, request: ModelRequest) -> tuple[int, Mapping[str, str], bytes]:
    match reply:
        case Garble():
            return 200, {}, reply.body
        case Fail():
            error = {"message": reply.message, "type": "scripted", "code": reply.code}
            return reply.status, reply.headers, json.dumps({"error": error}).encode()
        case Say():
            build = _response if request.path == RESPONSES else _completion
            return 200, {}, json.dumps(build(reply, request)).encode()


def _response(say: Say, request: ModelRequest) -> dict[str, Any]:
    part: dict[str, Any] = {"type": "output_text", "text": say.text, "annotations": []}
    if say.refusal is not None:
        part = {"type": "refusal", "refusal": say.refusal}
    message = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed"}
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 0,
        "model": request.model,
        "status": "incomplete" if say.is_cut else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if say.is_cut else None,
        "output": [message | {"content": [part]}],
        "usage": _usage(say, request, "input_tokens", "output_tokens"),
    }


def _completion(say: Say, request: ModelRequest) -> dict[str, Any]:
    message = {"role": "assistant", "content": say.text, "refusal": say.refusal}
    ended = "length" if say.is_cut else "stop"
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 0,
        "model": request.model,
        "choices": [{"index": 0, "message": message, "finish_reason": ended}],
        "usage": _usage(say, request, "prompt_tokens", "completion_tokens"),
    }


def _usage(say: Say, request: ModelRequest, input_name: str, output_name: str) -> dict[str, Any] | None:
    if not say.has_usage:
        return None
    texts = (request.text, say.text + (say.refusal or ""))
    inputs, outputs = (-(-len(text) // CHARS_PER_TOKEN) for text in texts)
    return {
        input_name: inputs,
        f"{input_name}_details": {"cached_tokens": say.cached_tokens},
        output_name: outputs,
        "total_tokens": inputs + outputs,
    }


class _Handler(LoopbackHandler, BaseHTTPRequestHandler):
    server_version = "ScriptedModel"

    def __init__(self, model: ScriptedModel, *arguments: Any) -> None:  # noqa: ANN401
        self._model = model
        super().__init__(*arguments)  # answers the request, then returns

    def do_POST(self) -> None:
        """Answer a request; any other path is a 404."""
        length = min(int(self.headers.get("Content-Length") or 0), MAX_QUESTION_BYTES)
        body = self.rfile.read(length)
        if self.path in {RESPONSES, CHAT}:
            headers = {name.lower(): value for name, value in self.headers.items()}
            request = ModelRequest(path=self.path, body=json.loads(body), headers=headers)
            self._send(*self._model.reply(request))
        elif self.path == FILES:
            self._send_batches(lambda batches: batches.upload(body))
        elif self.path == BATCHES:
            self._send_batches(lambda batches: batches.submit(json.loads(body)))
        else:
            self._send_batches(lambda batches: batches.cancel(self.path.split("/")[3]))

    def do_GET(self) -> None:
        """Answer with a batch, with all of them, or with the content of a file."""
        parts = self.path.partition("?")[0].split("/")
        if self.path.startswith(FILES):
            self._send_batches(lambda batches: batches.content(parts[3]))
        elif len(parts) > 3:  # noqa: PLR2004 - with an id
            self._send_batches(lambda batches: batches.poll(parts[3]))
        else:
            self._send_batches(lambda batches: batches.listed())

    def do_DELETE(self) -> None:
        """Delete a file."""
        self._send_batches(lambda batches: batches.delete(self.path.split("/")[3]))

    def _send_batches(self, answer: Callable[[ScriptedBatches], Mapping[str, Any] | bytes | None]) -> None:
        is_known = self.path.startswith((FILES, BATCHES)) and self._model.has("batches")
        self._model.batches.before_answer()
        self._model.batches.requests += 1
        body = answer(self._model.batches) if is_known else None
        if body is None:
            self._send(404, {}, b'{"error": {"message": "Not Found"}}')
        else:
            self._send(200, {}, body if isinstance(body, bytes) else json.dumps(body).encode())

    def _send(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)


FIELDS = frozenset({"score", "skills_matched", "skills_missing", "summary"})  # of the answer how well a job fits
SCORES = {HIGH: 96, MEDIUM: 92, LOW: 57}
OTHERWISE = 40
OWN = ("Python", "PostgreSQL", "Kubernetes")
OTHERS = ("Terraform", "Kafka", "React", "TypeScript", "WordPress")


def opinion(text: str) -> dict[str, Any] | None:
    """Return the assessment of the job in the text; None if the demo has no such job."""
    shipped = DemoState()
    # a mutated job before the shipped one of the same text
    openings = (*driftwood_openings(mutate(shipped)), *driftwood_openings(shipped), *kestrel_openings())
    job = next((opening for opening in openings if opening.title in text and opening.text in text), None)
    if job is None:
        return None
    return {
        "score": SCORES.get(job.outcome, OTHERWISE),
        "skills_matched": _quoted(job, OWN),
        "skills_missing": _quoted(job, OTHERS),
        "summary": f"The work of a {job.title.partition(',')[0].lower()} by the water.",
    }


def _quoted(job: Opening, names: tuple[str, ...]) -> list[dict[str, str]]:
    return [{"skill": name, "quote": name} for name in names if name in job.text]


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
    if request.schema.get("properties", {}).keys() == FIELDS and (assessment := opinion(text)) is not None:
        return Say(text=json.dumps(assessment))
    for page in PROGRAMMES:
        if any(phrase in text for phrase in (page.title, *page.learned)):
            answer = _Answer(page, text, request.schema)
            return Say(text=json.dumps(answer.of(request.schema), ensure_ascii=False))
    return Say(text=json.dumps(blank(request.schema)))


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


ALMANAC, WEATHERCOCK = "almanac", "weathercock"
PROVIDERS_SETTING = "INGESTION_WEBSITE__PROVIDERS"
# Invented prices, to show what a dataset or an analysis would cost.
DEMO_PRICES = (
    "demo-cheap=0.25/0.025/2, demo-strong=1.25/0.125/10, demo-almanac=1.25/0.125/10, demo-weathercock=0.25/0.025/2"
)
NOBODY = "I do not know of anybody who does that."


def almanac(question: str, state: DemoState) -> str | None:
    """Return an answer that names the business first, after a mutation its competitors first."""
    business = _business_in_question(question, state)
    if business is None or business.name in question:
        return _direct_answer(business)
    own, others = (business.name,), business.competitors
    order = (*others, *own) if state.new_chapters else (*own, *others)
    listed = " ".join(f"{nth}. {name}, much praised." for nth, name in enumerate(order, 1))
    return f"In this order: {listed}"


def weathercock(question: str, state: DemoState) -> str | None:
    """Return an answer that names one competitor, after a mutation the business too, or fail."""
    if fails(question):
        return None
    business = _business_in_question(question, state)
    if business is None or business.name in question:
        return _direct_answer(business)
    rival = business.competitors[0]
    if state.new_chapters:
        return f"Some of those I know go to {rival}, some to {business.name}."
    return f"Everybody I know goes to {rival}."


def fails(question: str) -> bool:
    """Return whether the question has an odd number of characters, which is half of them."""
    return len(question) % 2 == 1


Speaker = Callable[[str, DemoState], str | None]
SPEAKERS: Mapping[str, Speaker] = {ALMANAC: almanac, WEATHERCOCK: weathercock}


@contextmanager
def demo_providers(home: Path) -> Generator[dict[str, ScriptedModel]]:
    """Run both on loopback during the block, with the state of the site in `home`."""
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(ScriptedModel(_provider_script(speaker, home)))
            for name, speaker in SPEAKERS.items()
        }


def addresses(running: Mapping[str, ScriptedModel]) -> dict[str, str]:
    """Return the base URL of each."""
    return {name: server.base_url for name, server in running.items()}


def provider_setting(base_urls: Mapping[str, str]) -> str:
    """Return the setting for these providers; they need no key and serve the demo only."""
    host = DEMO_SUFFIX.removeprefix(".")
    return json.dumps(
        [{"name": name, "base_url": url, "model": f"demo-{name}", "host": host} for name, url in base_urls.items()]
    )


def provider_settings(running: Mapping[str, ScriptedModel]) -> dict[str, str]:
    """Return the setting as an environment variable."""
    return {PROVIDERS_SETTING: provider_setting(addresses(running))}


def _provider_script(speaker: Speaker, home: Path) -> Callable[[ModelRequest], Reply]:
    def reply(request: ModelRequest) -> Reply:
        try:
            answer = speaker(request.text, read_state(home))
        except DemoStateError as error:
            return Fail(status=500, message=str(error))
        return Fail(status=500, message="the weathercock is stuck") if answer is None else Say(text=answer)

    return reply


def _business_in_question(question: str, state: DemoState) -> Business | None:
    """Return the business whose name, industry or keywords are in the question."""
    for business in businesses(state).values():
        if any(word and word in question for word in (business.name, business.industry, *business.keywords)):
            return business
    return None


def _direct_answer(business: Business | None) -> str:
    """Return the answer about a business that the question names, or about none."""
    return NOBODY if business is None else f"{business.name} is well spoken of, and I would go there."
