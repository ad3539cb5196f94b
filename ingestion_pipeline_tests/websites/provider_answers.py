"""Scripted answer providers on loopback, settings for them, and analyses that use them."""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from sqlalchemy import Connection

from ingestion_pipeline.demo.model_server import Reply as ModelReply
from ingestion_pipeline.demo.model_server import Say, Script, ScriptedModel
from ingestion_pipeline.settings import Settings, load_settings
from ingestion_pipeline.store import Store
from ingestion_pipeline.websites.business import AskedPrompt, Business, PromptedBy
from ingestion_pipeline.websites.provider_analysis import Analysis, WebsiteAnalysed
from ingestion_pipeline.websites.provider_pool import ProviderPool, Reply, configured_providers
from ingestion_pipeline.websites.states import ProviderAnswer
from ingestion_pipeline_tests.builders import NOON

ACME = Business(url="https://acme.test", name="Acme", competitors=("Globex",), language="en", confidence=80)
PROMPTS = tuple(
    AskedPrompt(text=text, is_direct=is_direct, by=PromptedBy.TEMPLATES)
    for text, is_direct in (("Which tool is best?", False), ("Who is cheap?", False), ("What is Acme?", True))
)
PRICES = "m-one=1/0.1/2, m-two=10/1/20, cheap=1/0.1/2, strong=10/1/20"


def always(reply: ModelReply) -> Script:
    return lambda _: reply


def always_text(text: str, **more: Any) -> Script:
    return always(Say(text=text, **more))


def settings_with_providers(
    settings: Settings, providers: Mapping[str, str], variables: Mapping[str, str] | None = None
) -> Settings:
    """Return settings for the same database with a provider at each address, and quick retries."""
    provider_list = [
        {"name": name, "base_url": address, "model": f"m-{name}", "key_env": f"KEY_{name.upper()}"}
        for name, address in providers.items()
    ]
    environment = {
        "INGESTION_HOME": str(settings.home),
        "INGESTION_DATABASE_URL": settings.database_url,
        "INGESTION_WEBSITE__PROVIDERS": json.dumps(provider_list),
        "INGESTION_WEBSITE__ANSWER_SECONDS": "5",
        "INGESTION_MODELS__PRICES": PRICES,
        "INGESTION_MODELS__BACKOFF_BASE_SECONDS": "0.02",
        "INGESTION_MODEL_CHEAP": "cheap",
        "INGESTION_MODEL_STRONG": "strong",
    }
    return load_settings(environment | dict(variables or {}))


def ask_providers(store: Store, settings: Settings, *prompts: tuple[str, str], at_once: bool = False) -> list[Reply]:
    """Return the reply to each (provider, prompt), requested sequentially unless `at_once`."""

    async def ask_all() -> list[Reply]:
        async with ProviderPool(store, settings, configured_providers(settings)) as pool:
            if at_once:
                return await asyncio.gather(*(pool.ask(*prompt) for prompt in prompts))
            return [await pool.ask(*prompt) for prompt in prompts]

    return asyncio.run(ask_all())


def ask_one(
    store: Store, settings: Settings, script: Script, *prompts: str, variables: Mapping[str, str] | None = None
) -> tuple[list[Reply], ScriptedModel]:
    """Return the replies of a provider "one" with this script to the prompts, or to "Who?"; and its server."""
    with ScriptedModel(script) as server:
        provider_settings = settings_with_providers(settings, {"one": server.base_url}, variables)
        return ask_providers(store, provider_settings, *(("one", prompt) for prompt in prompts or ("Who?",))), server


def run_with_providers(
    store: Store, settings: Settings, scripts: Mapping[str, Script], **options: Any
) -> tuple[WebsiteAnalysed, list[ScriptedModel]]:
    """Run the analysis phase with a provider for each script; return the servers, too."""
    with ExitStack() as stack:
        servers = {name: stack.enter_context(ScriptedModel(script)) for name, script in scripts.items()}
        addresses = {name: server.base_url for name, server in servers.items()}
        return run_analysis(store, settings_with_providers(settings, addresses), **options), list(servers.values())


def run_analysis(
    store: Store,
    settings: Settings,
    *,
    prompts: Sequence[AskedPrompt] = PROMPTS,
    previous_answers: Sequence[ProviderAnswer] = (),
    on_answer: Callable[[ProviderAnswer], None] | None = None,
    progress: list[tuple[int, int]] | None = None,
    with_model: bool = False,
    business: Business = ACME,
) -> WebsiteAnalysed:
    """Run the analysis phase as a run does."""
    from ingestion_pipeline.reading.llm import ModelClient

    def store_answer(_: Connection, answer: ProviderAnswer) -> None:
        if on_answer is not None:
            on_answer(answer)

    async def report_progress(done: int, total: int) -> None:
        if progress is not None:
            progress.append((done, total))

    async def run() -> WebsiteAnalysed:
        async with (
            ProviderPool(store, settings, configured_providers(settings)) as pool,
            ModelClient(store, settings) as model,
        ):
            analysis = Analysis(
                business=business,
                prompts=prompts,
                previous_answers=previous_answers,
                source_id="website:acme",
                store=store,
                pool=pool,
                settings=settings,
                model=model if with_model else None,
                store_answer=store_answer,
                report_progress=report_progress,
            )
            return await analysis.run(now=NOON)

    return asyncio.run(run())
