"""Two scripted providers: one always answers, one fails on every other question.

Their answers depend only on the question and the state of the site, so that the visibility of each
business is known beforehand. An answer is None where the provider fails.
"""

import json
from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager
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


def almanac(question: str, state: DemoState) -> str | None:
    """Return an answer that names the business first, after a mutation its competitors first."""
    business = _business_in_question(question, state)
    if business is None or business.name in question:
        return _direct_answer(business)
    own, others = (business.name,), business.competitors
    order = (*others, *own) if state.new_chapters else (*own, *others)
    listed = " ".join(f"{nth}. {name}, much praised." for nth, name in enumerate(order, 1))
    return f"In this order: {listed}"


def weathercock(question: str, state: DemoState) -> str | None:
    """Return an answer that names one competitor, after a mutation the business too, or fail."""
    if fails(question):
        return None
    business = _business_in_question(question, state)
    if business is None or business.name in question:
        return _direct_answer(business)
    rival = business.competitors[0]
    if state.new_chapters:
        return f"Some of those I know go to {rival}, some to {business.name}."
    return f"Everybody I know goes to {rival}."


def fails(question: str) -> bool:
    """Return whether the question has an odd number of characters, which is half of them."""
    return len(question) % 2 == 1


Speaker = Callable[[str, DemoState], str | None]
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
        return Fail(status=500, message="the weathercock is stuck") if answer is None else Say(text=answer)

    return reply


def _business_in_question(question: str, state: DemoState) -> Business | None:
    """Return the business whose name, industry or keywords are in the question."""
    for business in businesses(state).values():
        if any(word and word in question for word in (business.name, business.industry, *business.keywords)):
            return business
    return None


def _direct_answer(business: Business | None) -> str:
    """Return the answer about a business that the question names, or about none."""
    return NOBODY if business is None else f"{business.name} is well spoken of, and I would go there."
