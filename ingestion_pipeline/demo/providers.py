"""Two providers whose answers are compared: one is always there, one fails at every other question.

What they say depends on the question and on the state of the site alone, so that how visible each
business must be is known beforehand.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from ingestion_pipeline.demo.businesses import businesses
from ingestion_pipeline.demo.host_names import DEMO_SUFFIX
from ingestion_pipeline.demo.model_server import Asked, Fail, Reply, Say, ScriptedModel
from ingestion_pipeline.demo.state import DemoState, DemoStateError, read_state
from ingestion_pipeline.websites.business import Business

ALMANAC, WEATHERCOCK = "almanac", "weathercock"
SETTING = "INGESTION_WEBSITE__PROVIDERS"
# Made up, to show what a dataset or an analysis would cost.
DEMO_PRICES = (
    "demo-cheap=0.25/0.025/2, demo-strong=1.25/0.125/10,"
    " demo-almanac=1.25/0.125/10, demo-weathercock=0.25/0.025/2"
)
NOBODY = "I do not know of anybody who does that."


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoAnswer:
    """An answer in words, and whom it names, in this order; None if the provider fails."""

    text: str
    names: tuple[str, ...] = ()


def almanac(question: str, state: DemoState) -> DemoAnswer | None:
    """Names everybody of the trade: the business first, since a mutation a competitor."""
    business = _asked_about(question, state)
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
    """Thinks of one competitor, since a mutation of the business, too; often out of order."""
    if fails(question):
        return None
    business = _asked_about(question, state)
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
    """Half the time: whenever the question has an odd number of characters."""
    return len(question) % 2 == 1


Speaker = Callable[[str, DemoState], DemoAnswer | None]
SPEAKERS: Mapping[str, Speaker] = {ALMANAC: almanac, WEATHERCOCK: weathercock}


@contextmanager
def demo_providers(home: Path) -> Generator[dict[str, ScriptedModel]]:
    """Both run while the block does, on loopback, by the state of the site in `home`."""
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(ScriptedModel(_script(speaker, home)))
            for name, speaker in SPEAKERS.items()
        }


def addresses(running: Mapping[str, ScriptedModel]) -> dict[str, str]:
    """Where each of them listens."""
    return {name: one.base_url for name, one in running.items()}


def provider_setting(base_urls: Mapping[str, str]) -> str:
    """What a run is told of them: they need no key, and know nobody but the demo's businesses."""
    host = DEMO_SUFFIX.removeprefix(".")
    return json.dumps(
        [
            {"name": name, "base_url": url, "model": f"demo-{name}", "host": host}
            for name, url in base_urls.items()
        ]
    )


def provider_settings(running: Mapping[str, ScriptedModel]) -> dict[str, str]:
    """The same as the variable that holds it."""
    return {SETTING: provider_setting(addresses(running))}


def _script(speaker: Speaker, home: Path) -> Callable[[Asked], Reply]:
    def reply(asked: Asked) -> Reply:
        try:
            spoken = speaker(asked.told, read_state(home))
        except DemoStateError as error:
            return Fail(status=500, message=str(error))
        if spoken is None:
            return Fail(status=500, message="the weathercock is stuck")
        return Say(text=spoken.text)

    return reply


def _asked_about(question: str, state: DemoState) -> Business | None:
    """Whose name, trade or goods are in the question."""
    known = businesses(state).values()
    return next(
        (
            one
            for one in known
            if any(word and word in question for word in (one.name, one.industry, *one.keywords))
        ),
        None,
    )


def _direct(business: Business) -> DemoAnswer:
    text = f"{business.name} is well spoken of, and I would go there."
    return DemoAnswer(text=text, names=(business.name,))
