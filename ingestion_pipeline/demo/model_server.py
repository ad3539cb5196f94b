"""A language model's server on loopback that says what it is told to: OpenAI's protocol, no model.

The same question has the same answer, to the byte: what the demo shows, and what tests need said
that no real model says on demand (refusals, cut-offs, nonsense, servers of few abilities).
"""

from __future__ import annotations

import json
import socketserver
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self, cast

LOOPBACK = "127.0.0.1"
CLIENT_TIMEOUT_SECONDS = 5.0
CHARS_PER_TOKEN = 4
MAX_QUESTION_BYTES = 20_000_000
RESPONSES, CHAT = "/v1/responses", "/v1/chat/completions"
# What a server may lack: the way of asking, or the strictness of an answer's form.
ABILITIES = frozenset({"responses", "json_schema", "json_object"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One question as it arrived."""

    path: str
    body: Mapping[str, Any]
    headers: Mapping[str, str]

    @property
    def model(self) -> str:
        """The model that was asked."""
        return str(self.body.get("model"))

    @property
    def form(self) -> Mapping[str, Any]:
        """How the answer's form was asked for; empty for plain text."""
        asked: Any = self.body.get("text") or {}
        found = asked.get("format") if self.path == RESPONSES else self.body.get("response_format")
        return cast("Mapping[str, Any]", found or {})

    @property
    def schema(self) -> Mapping[str, Any]:
        """The schema that the answer must have, empty if none was given."""
        form = self.form
        return cast("Mapping[str, Any]", form.get("json_schema", form).get("schema", {}))

    @property
    def told(self) -> str:
        """All that the model is told, in order."""
        turns = cast(
            "Sequence[Mapping[str, Any]]", self.body.get("input", self.body.get("messages"))
        )
        texts = [str(self.body.get("instructions", "")), *(str(one["content"]) for one in turns)]
        return "\n".join(text for text in texts if text)

    @property
    def needs(self) -> str | None:
        """The ability that the question takes for granted."""
        if self.path == RESPONSES:
            return "responses"
        kind = self.form.get("type")
        return str(kind) if kind in ABILITIES else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Say:
    """An answer in words; `is_cut` where it ends at the limit of tokens."""

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
    """Bytes that are no answer at all, with status 200."""

    body: bytes


Reply = Say | Fail | Garble
Script = Callable[[Asked], Reply]


def in_turn(*replies: Reply) -> Script:
    """The replies one by one, the last one for ever."""
    left = list(replies)
    lock = threading.Lock()

    def reply(_: Asked) -> Reply:
        with lock:
            return left.pop(0) if len(left) > 1 else left[0]

    return reply


def by_page(answers: Mapping[str, Mapping[str, Any]]) -> Script:
    """The answer whose key stands in the question, else the emptiest that the schema allows."""

    def reply(asked: Asked) -> Reply:
        told = asked.told
        found = next((answer for key, answer in answers.items() if key in told), None)
        return Say(text=json.dumps(blank(asked.schema) if found is None else found))

    return reply


def blank(schema: Mapping[str, Any], definitions: Mapping[str, Any] | None = None) -> Any:  # noqa: ANN401
    """The emptiest value that a strict schema allows: null before nothing before one."""
    known = cast("Mapping[str, Any]", schema.get("$defs", definitions or {}))
    if "$ref" in schema:
        return blank(known[str(schema["$ref"]).removeprefix("#/$defs/")], known)
    if "anyOf" in schema:
        choices = [blank(one, known) for one in schema["anyOf"]]
        return None if None in choices else choices[0]
    if "enum" in schema or "const" in schema:
        return schema.get("enum", [schema.get("const")])[0]
    kinds = schema.get("type", "object")
    kind = kinds if isinstance(kinds, str) else ("null" if "null" in kinds else kinds[0])
    if kind == "object":
        fields = cast("Mapping[str, Any]", schema.get("properties", {}))
        return {name: blank(inner, known) for name, inner in fields.items()}
    empty: Mapping[str, Any] = {"array": [], "string": "", "boolean": False, "null": None}
    return empty.get(kind, schema.get("minimum", 0))


class ScriptedModel:
    """The server runs while the `with` block does, on `port` (0: any free one).

    What it lacks (`without`, of `ABILITIES`) it refuses with `refusal_status`, as real servers do.
    """

    def __init__(
        self,
        script: Script,
        *,
        port: int = 0,
        without: Collection[str] = (),
        refusal_status: int = 400,
    ) -> None:
        self.port = port
        self._script = script
        self._without = frozenset(without)
        self._refusal_status = refusal_status
        self._asked: list[Asked] = []
        self._lock = threading.Lock()
        self._running = ExitStack()

    @property
    def base_url(self) -> str:
        """As OPENAI_BASE_URL wants it."""
        return f"http://{LOOPBACK}:{self.port}/v1"

    @property
    def asked(self) -> list[Asked]:
        """Every question so far, in the order in which they came."""
        with self._lock:
            return list(self._asked)

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            server = stack.enter_context(_Server((LOOPBACK, self.port), partial(_Handler, self)))
            self.port = server.server_port
            thread = threading.Thread(target=server.serve_forever, args=(0.02,), name="demo-model")
            thread.start()
            stack.callback(thread.join)
            stack.callback(server.shutdown)
            self._running = stack.pop_all()
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self._running.close()

    def reply(self, asked: Asked) -> tuple[int, Mapping[str, str], bytes]:
        """Status, headers and body for a question."""
        with self._lock:
            self._asked.append(asked)
        if asked.needs in self._without:
            return _sent(self._refusal(asked), asked)
        return _sent(self._script(asked), asked)

    def _refusal(self, asked: Asked) -> Fail:
        if asked.needs == "responses":
            return Fail(status=404, message="Not Found")
        return Fail(
            status=self._refusal_status,
            message="response_format.type: Input should be 'text' or 'json_object'",
        )


def _sent(reply: Reply, asked: Asked) -> tuple[int, Mapping[str, str], bytes]:
    match reply:
        case Garble():
            return 200, {}, reply.body
        case Fail():
            error = {"message": reply.message, "type": "scripted", "code": reply.code}
            return reply.status, reply.headers, json.dumps({"error": error}).encode()
        case Say():
            build = _response if asked.path == RESPONSES else _completion
            return 200, {}, json.dumps(build(reply, asked)).encode()


def _response(say: Say, asked: Asked) -> dict[str, Any]:
    part: dict[str, Any] = {"type": "output_text", "text": say.text, "annotations": []}
    if say.refusal is not None:
        part = {"type": "refusal", "refusal": say.refusal}
    message = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed"}
    inputs, outputs = _tokens(asked.told), _tokens(say.text + (say.refusal or ""))
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 0,
        "model": asked.model,
        "status": "incomplete" if say.is_cut else "completed",
        "incomplete_details": {"reason": "max_output_tokens"} if say.is_cut else None,
        "output": [message | {"content": [part]}],
        "usage": {
            "input_tokens": inputs,
            "input_tokens_details": {"cached_tokens": say.cached_tokens},
            "output_tokens": outputs,
            "total_tokens": inputs + outputs,
        }
        if say.has_usage
        else None,
    }


def _completion(say: Say, asked: Asked) -> dict[str, Any]:
    message = {"role": "assistant", "content": say.text, "refusal": say.refusal}
    ended = "length" if say.is_cut else "stop"
    inputs, outputs = _tokens(asked.told), _tokens(say.text + (say.refusal or ""))
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 0,
        "model": asked.model,
        "choices": [{"index": 0, "message": message, "finish_reason": ended}],
        "usage": {
            "prompt_tokens": inputs,
            "prompt_tokens_details": {"cached_tokens": say.cached_tokens},
            "completion_tokens": outputs,
            "total_tokens": inputs + outputs,
        }
        if say.has_usage
        else None,
    }


def _tokens(text: str) -> int:
    return -(-len(text) // CHARS_PER_TOKEN)


class _Server(ThreadingHTTPServer):
    daemon_threads = False  # closing waits for answers under way, so that no socket is left open
    request_queue_size = 1_024  # clients that are killed leave theirs in it

    def server_bind(self) -> None:
        """Bind without HTTPServer's reverse lookup of the address, which may ask a name server."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = LOOPBACK, self.socket.getsockname()[1]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "ScriptedModel", ""
    timeout = CLIENT_TIMEOUT_SECONDS

    def __init__(self, model: ScriptedModel, *arguments: Any) -> None:  # noqa: ANN401
        self._model = model
        super().__init__(*arguments)  # answers the request, then returns

    def handle(self) -> None:
        """Answer; a client that hangs up has lost interest, which is no error of ours."""
        with suppress(ConnectionError):
            super().handle()

    def do_POST(self) -> None:
        """Answer a question, or say that there is no such way of asking."""
        length = min(int(self.headers.get("Content-Length") or 0), MAX_QUESTION_BYTES)
        body = self.rfile.read(length)
        if self.path not in {RESPONSES, CHAT}:
            self._send(404, {}, b'{"error": {"message": "Not Found"}}')
            return
        headers = {name.lower(): value for name, value in self.headers.items()}
        asked = Asked(path=self.path, body=json.loads(body), headers=headers)
        self._send(*self._model.reply(asked))

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - http.server's own name
        """Keep no access log: `ScriptedModel.asked` has all."""

    def _send(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)
