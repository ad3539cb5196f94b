"""The model that comes with the demo: for one run, or beside the served site."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ingestion_pipeline.cli.output import say

if TYPE_CHECKING:
    from ingestion_pipeline.demo.model_server import ScriptedModel

# Names of its own, so that the ledger tells its calls from those of a real one.
NAMES = {"INGESTION_MODEL_CHEAP": "demo-cheap", "INGESTION_MODEL_STRONG": "demo-strong"}
PRICES = "INGESTION_MODELS__PRICES"


def bundled_model(port: int = 0) -> ScriptedModel:
    """A server on loopback that knows the demo's pages of outcomes; it needs no key."""
    from ingestion_pipeline.demo.model_script import demo_model
    from ingestion_pipeline.demo.model_server import ScriptedModel

    return ScriptedModel(demo_model, port=port)


def model_settings(model: ScriptedModel) -> dict[str, str]:
    """What a run is told of the model; a real key never goes to it."""
    return {"OPENAI_BASE_URL": model.base_url, "OPENAI_API_KEY": "demo", **NAMES}


def demo_prices() -> dict[str, str]:
    """What every model costs: the demo's own beside those that are known anyway."""
    from ingestion_pipeline.cli.opening import environment
    from ingestion_pipeline.demo.providers import DEMO_PRICES
    from ingestion_pipeline.settings import load_settings

    return {PRICES: f"{load_settings(environment()).models.prices}, {DEMO_PRICES}"}


def say_address(model: ScriptedModel) -> None:
    """How a command in another terminal finds the model."""
    say(f"the demo's model listens on {model.base_url}; to ask it, set")
    say(f"  OPENAI_BASE_URL={model.base_url} OPENAI_API_KEY=demo")


def say_asked(model: ScriptedModel) -> None:
    """How often it was asked, by model."""
    names = [one.model for one in model.asked]
    counts = ", ".join(f"{name} {names.count(name)} times" for name in sorted(set(names)))
    say(f"\nthe demo's model was asked: {counts or 'nothing'}")
