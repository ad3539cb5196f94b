"""Composition root for runs and commands: build the run context, fetcher, renderer and channels."""

import time
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, closing, contextmanager, nullcontext
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from ingestion_pipeline.companies.matching.listing_runs import profile_path
from ingestion_pipeline.engine.context import MountNames, RunContext
from ingestion_pipeline.gc_thresholds import fewer_collections
from ingestion_pipeline.notices.channels import AppriseChannel, Channels, WebhookChannel, WebhookLimits
from ingestion_pipeline.pages.browser import BrowserRenderer, NoBrowser, find_browser
from ingestion_pipeline.pages.content.store import ContentStore
from ingestion_pipeline.pages.http.fetcher import FetchLimits, HttpFetcher
from ingestion_pipeline.pages.http.guard import Guard, local_resolver, no_network, running_server, system_resolver
from ingestion_pipeline.pages.http.identity import load_identity
from ingestion_pipeline.pages.http.request import Secrets
from ingestion_pipeline.pages.visits.page import Renderer
from ingestion_pipeline.registry import create_tables, deferred_systems, polled_systems
from ingestion_pipeline.settings import Settings, secret_variable
from ingestion_pipeline.store.database import open_read_only
from ingestion_pipeline.store.stored_settings import open_from_environment

if TYPE_CHECKING:
    from ingestion_pipeline.pages.http.replay import StoredResponses


@contextmanager
def open_run_context(
    environment: Mapping[str, str] | None = None, *, run_id: str | None = None, names: MountNames | None = None
) -> Generator[RunContext]:
    """Yield what a run needs: store, settings, content, systems; close the store at the end."""
    settings, store = open_from_environment(environment)
    settings = _with_local_server(settings)
    if settings.shadow:
        from ingestion_pipeline.operations.shadow import shadowing

        settings = shadowing(settings)
    with fewer_collections(), closing(store):
        create_tables(store)
        if settings.shadow:
            from ingestion_pipeline.operations.shadow import copy_declarations

            copy_declarations(store, settings)
        yield RunContext(
            store=store,
            settings=settings,
            content=ContentStore(settings.home / "content"),
            systems=polled_systems(),
            deferred_systems=deferred_systems(),
            run_id=run_id,
            names=names or MountNames(),
        )


def _with_local_server(settings: Settings) -> Settings:
    """Return the settings with the profile and the providers of a local server, while it runs.

    Each applies only where the operator has none: no profile; neither a provider nor a model.
    """
    server = running_server(settings.home)
    if server is None or settings.shadow:
        return settings
    changes: dict[str, object] = {}
    if server.profile and not profile_path(settings).exists():
        changes["match"] = settings.match.model_copy(update={"profile": server.profile})
    if server.providers and not settings.website.providers and not settings.has_model:
        changes["website"] = settings.website.model_copy(update={"providers": server.providers})
        changes["models"] = settings.models.model_copy(update={"prices": f"{settings.models.prices}, {server.prices}"})
    return settings.model_copy(update=changes)


def open_fetcher(settings: Settings) -> HttpFetcher:
    """Return the HTTP fetcher; while a local server runs, its host names resolve to it."""
    limits = FetchLimits(
        max_bytes=settings.fetch.max_bytes,
        deadline_seconds=settings.fetch.deadline_seconds,
        blocked_for=settings.fetch.blocked_for,
    )
    # Read when it is sent: the value of a variable that a source's config names.
    secrets = Secrets(
        allowed=settings.allowed_secrets, read=lambda name: secret_variable(name).get_secret_value() or None
    )
    return HttpFetcher(
        settings.user_agent,
        limits,
        _guard(settings),
        secrets=secrets,
        responses=stored_responses(settings) if settings.shadow else None,
        signer=_signer(settings),
    )


def _signer(settings: Settings) -> Callable[[str], Mapping[str, str]] | None:
    """Return what signs requests; None unless a key was created and the setting names its directory."""
    identity = load_identity(settings.home) if settings.identity.agent_url else None
    if identity is None:
        return None
    agent_url = settings.identity.agent_url
    return lambda url: identity.signature_headers(url, agent_url=agent_url, at=time.time())


def renderer_if_any(
    settings: Settings, *, clock: Callable[[], datetime]
) -> AbstractAsyncContextManager[Renderer | None]:
    """Return a renderer if this machine has a browser; else pages that need one are refused. A shadow needs none."""
    if settings.shadow:
        return closing_responses(stored_responses(settings))
    try:
        find_browser(settings)
    except NoBrowser:
        return nullcontext()
    return BrowserRenderer(settings, _guard(settings), clock=clock)  # starts no browser before it is needed


def open_channels(settings: Settings) -> Channels:
    """Return the notification channels; webhooks pass the same address guard as pages."""
    limits = WebhookLimits(deadline_seconds=settings.fetch.deadline_seconds, blocked_for=settings.fetch.blocked_for)
    return Channels(
        WebhookChannel(settings.user_agent, limits, _guard(settings)),
        AppriseChannel(settings.notify_services, deadline_seconds=settings.fetch.deadline_seconds),
    )


def _guard(settings: Settings) -> Guard:
    """Return the address guard; while a local server runs, its host names resolve to it."""
    if settings.shadow:
        return Guard(resolve=no_network)
    server = running_server(settings.home)
    return Guard(settings.allowed_hosts, local_resolver(server, system_resolver) if server else system_resolver)


def stored_responses(settings: Settings) -> "StoredResponses":
    """Return what the shadowed installation has stored."""
    from ingestion_pipeline.pages.http.replay import StoredResponses

    content = ContentStore(Path(settings.shadow_home) / "content")
    return StoredResponses(open_read_only(settings.shadowed_url), content)


@asynccontextmanager
async def closing_responses(responses: "StoredResponses") -> AsyncGenerator[Renderer | None]:
    """Yield them as a renderer; close them at the end."""
    try:
        yield responses
    finally:
        await responses.aclose()
