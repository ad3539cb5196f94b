"""The demo's HTTP servers: on loopback, a thread for each request, closed without an open socket."""

import socketserver
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

LOOPBACK = "127.0.0.1"


class _Server(ThreadingHTTPServer):
    daemon_threads = False  # closing waits for answers under way, so that no socket is left open
    request_queue_size = 1_024  # clients that are killed leave theirs in it

    def server_bind(self) -> None:
        """Bind without HTTPServer's reverse lookup of the address, which may ask a name server."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = LOOPBACK, self.socket.getsockname()[1]


class LoopbackHandler(BaseHTTPRequestHandler):
    """A request handler without an access log, which ignores clients that hang up."""

    protocol_version = "HTTP/1.1"
    sys_version = ""
    timeout = 5.0  # a client that connects and sends nothing may delay closing this long

    def handle(self) -> None:
        """Answer the request."""
        with suppress(ConnectionError):
            super().handle()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - http.server's own name
        """Log nothing: the servers themselves record their requests."""


@contextmanager
def serving(port: int, handler: Callable[..., BaseHTTPRequestHandler], *, name: str) -> Generator[int]:
    """Serve during the block, on `port` (0: any free one); yield the port."""
    with _Server((LOOPBACK, port), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), name=name)
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()
