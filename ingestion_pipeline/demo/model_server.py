"""A scripted language model server on loopback that speaks OpenAI's protocol.

The same request gets the same answer, to the byte. The demo uses it, and tests that need answers no
real model gives on demand (refusals, cut-offs, garbage, missing features).
"""

import json
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler
from types import TracebackType
from typing import Any, Self, cast

from ingestion_pipeline.demo.loopback import LOOPBACK, LoopbackHandler, serving

CHARS_PER_TOKEN = 4
MAX_QUESTION_BYTES = 20_000_000
RESPONSES, CHAT = "/v1/responses", "/v1/chat/completions"
# Features that a server may lack: an endpoint, or a response format.
ABILITIES = frozenset({"responses", "json_schema", "json_object"})


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


def in_turn(*replies: Reply) -> Script:
    """Return a script that gives the replies one by one, the last one for ever."""
    left = list(replies)
    lock = threading.Lock()

    def reply(_: ModelRequest) -> Reply:
        with lock:
            return left.pop(0) if len(left) > 1 else left[0]

    return reply


def by_page(answers: Mapping[str, Mapping[str, Any]]) -> Script:
    """Return a script that gives the answer whose key is in the request, else an empty one."""

    def reply(request: ModelRequest) -> Reply:
        text = request.text
        matching = next((answer for key, answer in answers.items() if key in text), None)
        return Say(text=json.dumps(blank(request.schema) if matching is None else matching))

    return reply


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
        if self.path not in {RESPONSES, CHAT}:
            self._send(404, {}, b'{"error": {"message": "Not Found"}}')
            return
        headers = {name.lower(): value for name, value in self.headers.items()}
        request = ModelRequest(path=self.path, body=json.loads(body), headers=headers)
        self._send(*self._model.reply(request))

    def _send(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)
