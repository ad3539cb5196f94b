"""A small server on loopback that answers a scrape with the numbers of its moment."""

from __future__ import annotations

from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from ingestion_pipeline.cli.metrics import metrics_now
from ingestion_pipeline.cli.output import say


def serve(port: int) -> None:
    """Until it is interrupted."""
    with open_server(port) as server:
        say(f"http://127.0.0.1:{server.server_port}/metrics until Ctrl-C")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            say("")


def open_server(port: int) -> ThreadingHTTPServer:
    """A server of this machine's own; 0 takes any port."""
    return ThreadingHTTPServer(("127.0.0.1", port), _Answer)


class _Answer(BaseHTTPRequestHandler):
    """Two pages: the metrics, and that there is nothing else."""

    def do_GET(self) -> None:
        """The numbers of this moment."""
        from ingestion_pipeline.upkeep.metrics import CONTENT_TYPE

        if self.path.partition("?")[0] != "/metrics":
            self.send_error(404, "see /metrics")
            return
        try:
            body = metrics_now().encode()
        except Exception as error:  # the next scrape may succeed; the server goes on
            self.send_error(503, type(error).__name__)
            return
        self.send_response(200)
        self.send_header("Content-Type", CONTENT_TYPE)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base's name
        """A scrape every few seconds is no news."""
