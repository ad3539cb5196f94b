"""What `ingest doctor` asks beyond the database: the model's server and the installed packages."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, requires, version
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from ingestion_pipeline.cli import doctor_checks as checks
from ingestion_pipeline.cli.doctor_checks import DoctorCheck

if TYPE_CHECKING:
    from ingestion_pipeline.settings import Settings
    from ingestion_pipeline.sources import Source

PACKAGE = "ingestion_pipeline"
NAME = "model server"
PATIENCE_SECONDS = 5.0


def model_server(settings: Settings) -> DoctorCheck:
    """One request for its list of models: nothing is asked of a model, nothing is paid.

    What it answers is not shown: a server may repeat the key it refuses.
    """
    import openai

    from ingestion_pipeline.reading.models.server import shown_base_url

    base_url, began = shown_base_url(settings), time.monotonic()
    try:
        known = asyncio.run(_models(settings))
    except openai.NotFoundError:
        known = set[str]()  # a server of one's own need not have a list
    except openai.APIStatusError as error:
        return _answered(base_url, error.status_code)
    except (openai.APIError, ValueError, OSError) as error:
        cure = "is OPENAI_BASE_URL right, and does the server run?"
        return checks.failed(NAME, f"{base_url}: {_reason(error)}", cure)
    wanted = dict.fromkeys((settings.model_cheap, settings.model_strong))
    if missing := [one for one in wanted if known and one not in known]:
        cure = "INGESTION_MODEL_CHEAP and INGESTION_MODEL_STRONG name models that it has"
        return checks.warning(NAME, f"{base_url} does not list {', '.join(missing)}", cure)
    return checks.ok(NAME, f"{base_url} answers in {time.monotonic() - began:.1f} s")


def _answered(base_url: str, status: int) -> DoctorCheck:
    if status in {401, 403}:
        cure = "correct OPENAI_API_KEY, or the rights it has"
        return checks.failed(NAME, f"{base_url} refuses the key ({status})", cure)
    cure = "try again later; if it stays, ask who runs it"
    return checks.warning(NAME, f"{base_url} answers {status}", cure)


async def _models(settings: Settings) -> set[str]:
    from ingestion_pipeline.reading.models.wire import open_client

    key = settings.openai_api_key.get_secret_value()
    async with open_client(key, settings.openai_base_url) as client:
        listed = await client.with_options(timeout=PATIENCE_SECONDS).models.list()
        return {one.id for one in listed.data or ()}


def _reason(error: Exception) -> str:
    """The innermost one; the client's own only says that there was one."""
    while isinstance(error.__cause__, Exception):
        error = error.__cause__
    return str(error) or type(error).__name__


def allow_list(allowed: Iterable[str], sources: Iterable[Source]) -> DoctorCheck:
    """Addresses that the guard lets through though they are private."""
    exempt = sorted(allowed)
    if not exempt:
        return checks.ok("allow list", "empty: no private address is fetched")
    polled = {urlsplit(one.url).hostname for one in sources}
    unused = [one for one in exempt if one.rpartition(":")[0].strip("[]").lower() not in polled]
    if unused:
        cure = "take them out of INGESTION_ALLOW_HOSTS: whoever redirects us there gets through"
        return checks.warning("allow list", f"no source is at {', '.join(unused)}", cure)
    return checks.ok("allow list", f"exempt from the guard: {', '.join(exempt)}")


def versions(needed: Sequence[str] | None = None) -> DoctorCheck:
    """Whether what is installed is what this release was made with."""
    asked = requires(PACKAGE) if needed is None else needed
    wrong = list(_mismatches(asked or ()))
    if not wrong:
        return checks.ok("versions", f"{PACKAGE} {version(PACKAGE)}, every package as it asks for")
    cure = "`make install`, or `pip install -c constraints.txt -e .`, in this environment"
    return checks.failed("versions", "; ".join(wrong), cure)


def _mismatches(needed: Iterable[str]) -> Iterable[str]:
    from packaging.requirements import Requirement

    no_extra: Mapping[str, str] = {"extra": ""}
    for one in map(Requirement, needed):
        if one.marker is not None and not one.marker.evaluate(dict(no_extra)):
            continue
        try:
            found = version(one.name)
        except PackageNotFoundError:
            yield f"{one} is not installed"
            continue
        if not one.specifier.contains(found, prereleases=True):
            yield f"{one.name} is {found}, not {one.specifier}"
