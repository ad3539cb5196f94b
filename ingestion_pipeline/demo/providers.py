"""Two scripted providers: one always answers, one fails on every other question.

Their answers depend only on the question and the state of the site, so that the visibility of each
business is known beforehand.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from ingestion_pipeline.demo import DEMO_SUFFIX
from ingestion_pipeline.demo.businesses import businesses
from ingestion_pipeline.demo.model_server import Fail, ModelRequest, Reply, Say, ScriptedModel
from ingestion_pipeline.demo.state import DemoState, DemoStateError, read_state
from ingestion_pipeline.websites.business import Business

ALMANAC, WEATHERCOCK = "almanac", "weathercock"
SETTING = "INGESTION_WEBSITE__PROVIDERS"
# Invented prices, to show what a dataset or an analysis would cost.
DEMO_PRICES = (
    "demo-cheap=0.25/0.025/2, demo-strong=1.25/0.125/10, demo-almanac=1.25/0.125/10, demo-weathercock=0.25/0.025/2"
)
NOBODY = "I do not know of anybody who does that."


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoAnswer:
    """An answer, and the businesses it names in order."""

    text: str
    names: tuple[str, ...] = ()


def almanac(question: str, state: DemoState) -> DemoAnswer | None:
    """Return an answer that names the business first, after a mutation its competitors first."""
    business = _business_in_question(question, state)
    if business is None:
        return DemoAnswer(text=NOBODY)
    if business.name in question:
        return _direct(business)
    first, second = business.competitors
    order = (business.name, first, second)
    if state.new_chapters:
        order = (first, second, business.name)
    listed = " ".join(f"{nth}. {name}, much praised." for nth, name in enumerate(order, 1))
    return DemoAnswer(text=f"In this order: {listed}", names=order)


def weathercock(question: str, state: DemoState) -> DemoAnswer | None:
    """Return an answer that names one competitor, after a mutation the business too, or fail."""
    if fails(question):
        return None
    business = _business_in_question(question, state)
    if business is None:
        return DemoAnswer(text=NOBODY)
    if business.name in question:
        return _direct(business)
    rival = business.competitors[0]
    if state.new_chapters:
        text = f"Some of those I know go to {rival}, some to {business.name}."
        return DemoAnswer(text=text, names=(rival, business.name))
    return DemoAnswer(text=f"Everybody I know goes to {rival}.", names=(rival,))


def fails(question: str) -> bool:
    """Return whether the question has an odd number of characters, which is half of them."""
    return len(question) % 2 == 1


Speaker = Callable[[str, DemoState], DemoAnswer | None]
SPEAKERS: Mapping[str, Speaker] = {ALMANAC: almanac, WEATHERCOCK: weathercock}


@contextmanager
def demo_providers(home: Path) -> Generator[dict[str, ScriptedModel]]:
    """Run both on loopback during the block, with the state of the site in `home`."""
    with ExitStack() as stack:
        yield {name: stack.enter_context(ScriptedModel(_script(speaker, home))) for name, speaker in SPEAKERS.items()}


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
    return {SETTING: provider_setting(addresses(running))}


def _script(speaker: Speaker, home: Path) -> Callable[[ModelRequest], Reply]:
    def reply(request: ModelRequest) -> Reply:
        try:
            answer = speaker(request.text, read_state(home))
        except DemoStateError as error:
            return Fail(status=500, message=str(error))
        if answer is None:
            return Fail(status=500, message="the weathercock is stuck")
        return Say(text=answer.text)

    return reply


def _business_in_question(question: str, state: DemoState) -> Business | None:
    """Return the business whose name, industry or keywords are in the question."""
    candidates = businesses(state).values()
    return next(
        (
            business
            for business in candidates
            if any(word and word in question for word in (business.name, business.industry, *business.keywords))
        ),
        None,
    )


def _direct(business: Business) -> DemoAnswer:
    text = f"{business.name} is well spoken of, and I would go there."
    return DemoAnswer(text=text, names=(business.name,))
