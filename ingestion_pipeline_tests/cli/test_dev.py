"""What `ingest dev` shows of the lines that Dagster prints."""

import pytest

from ingestion_pipeline.cli.installation import is_noise

AT = b"\x1b[32m2026-11-19 05:25:23 +0000\x1b[0m"


@pytest.mark.parametrize(
    "line",
    [
        AT + b" - dagster - \x1b[34mINFO\x1b[0m - Launching Dagster services...",
        AT + b" - dagster.daemon - \x1b[34mINFO\x1b[0m - Instance is configured with the following daemons:",
        AT + b" - dagster-webserver - \x1b[34mINFO\x1b[0m - Serving dagster-webserver on http://127.0.0.1:3124",
        AT + b" - dagster.daemon.SensorDaemon - \x1b[34mINFO\x1b[0m - Sensor new_sources skipped: nothing new",
        b"2026-11-19 05:25:28 +0000 - dagster - INFO - process_companies - 0fc37e5f - analyze - analyze finished",
        b"UserWarning: Found a dagster instance configuration value (run_queue) in dagster.yaml",
    ],
)
def test_a_line_of_a_healthy_start_is_not_shown(line: bytes) -> None:
    assert is_noise(line)


@pytest.mark.parametrize(
    "line",
    [
        AT + b" - dagster.daemon.SensorDaemon - \x1b[33mWARNING\x1b[0m - Moving dangling STARTED tick into SKIPPED",
        b"2026-11-19 05:25:28 +0000 - dagster - ERROR - poll_hot - 0fc37e5f - fetch - no source succeeded",
        b"OSError: [Errno 98] Address already in use",
    ],
)
def test_a_warning_or_an_error_is_shown(line: bytes) -> None:
    assert not is_noise(line)
