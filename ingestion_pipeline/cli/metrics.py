"""`ingest metrics`: print, write or serve the current metrics as Prometheus text."""

from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import click

from ingestion_pipeline.cli.output import echo
from ingestion_pipeline.cli.session import reading


@click.command()
@click.option(
    "--out",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write a file atomically, for node_exporter's textfile collector.",
)
@click.option(
    "--serve",
    "port",
    type=click.IntRange(0, 65_535),
    help="Serve GET /metrics on this port of 127.0.0.1 until interrupted; 0: any port.",
)
def metrics(*, out: Path | None, port: int | None) -> None:
    """Print the metrics as Prometheus text.

    Queues, runs, polls, sources and models, at this moment.

    Names and meanings are in docs/operating/monitoring.md.
    """
    if out is not None and port is not None:
        raise click.UsageError("--out and --serve exclude each other: use one of them")
    if port is not None:
        serve(port)
    elif out is None:
        click.echo(metrics_now(), nl=False)
    else:
        _write(out, metrics_now())


def metrics_now() -> str:
    """Return the current metrics of this environment's store."""
    from ingestion_pipeline.operations.metrics import exposition, numbers
    from ingestion_pipeline.operations.source_health import source_statuses

    with reading() as (settings, connection, now):
        statuses = source_statuses(connection, settings, now=now)
        return exposition(numbers(connection, settings, statuses, now=now))


def _write(out: Path, text: str) -> None:
    """Write the file atomically, so that a collector never reads half of it."""
    from ingestion_pipeline.exports.formats import replacing

    with replacing(out) as part:
        part.write_text(text)
        part.chmod(0o644)  # the collector usually runs as another user
    echo(f"written to {out}")


def serve(port: int) -> None:
    """Serve the metrics until interrupted."""
    with open_server(port) as server:
        echo(f"http://127.0.0.1:{server.server_port}/metrics (stop with Ctrl-C)")
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            echo("")


def open_server(port: int) -> ThreadingHTTPServer:
    """Return a server on loopback; port 0 takes any free one."""
    return ThreadingHTTPServer(("127.0.0.1", port), _Answer)


class _Answer(BaseHTTPRequestHandler):
    """A request handler for /metrics; every other path is a 404."""

    def do_GET(self) -> None:
        """Send the current metrics."""
        from ingestion_pipeline.operations.metrics import CONTENT_TYPE

        if self.path.partition("?")[0] != "/metrics":
            self.send_error(404, "see /metrics")
            return
        try:
            body = metrics_now().encode()
        except Exception as error:  # the next scrape may succeed
            self.send_error(503, type(error).__name__)
            return
        self.send_response(200)
        self.send_header("Content-Type", CONTENT_TYPE)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base's name
        """Log nothing: a scrape every few seconds is not worth a line."""
