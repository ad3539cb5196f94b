"""The providers whose answers are compared: from the settings, or the one that is configured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from ingestion_pipeline.reading.models.wire import OPENAI
from ingestion_pipeline.settings import (
    BadSetting,
    Provider,
    Settings,
    is_provider_list,
    provider_list,
    providers_of,
    secret_variable,
)
from ingestion_pipeline.urls import host_of

DEFAULT = "default"
DEFAULT_CONCURRENCY = 4


def configured_providers(settings: Settings) -> tuple[Provider, ...]:
    """Those of the setting or of the file it names; else the model's server; else none.

    Raises:
        BadSetting: the file cannot be read, or what it says is wrong; all of it is named.
    """
    given = settings.website.providers.strip()
    if not given:
        return _default(settings)
    if is_provider_list(given):
        return provider_list(given)
    try:
        return providers_of(_document(Path(given)))
    except (OSError, ValueError) as error:
        raise BadSetting(
            f"setting website.providers names the file {given}: {error};"
            " mend the file, or give the list itself as JSON"
        ) from None


def asked_about(providers: Sequence[Provider], url: str) -> tuple[Provider, ...]:
    """Those who are asked about the website at `url`: all but who answers for other hosts."""
    host = f".{host_of(url)}"
    return tuple(one for one in providers if not one.host or host.endswith(f".{one.host}"))


def provider_key(
    provider: Provider, settings: Settings, environment: Mapping[str, str] | None = None
) -> str:
    """The provider's key; the model's own for the default one, none where none is named."""
    if provider.name == DEFAULT and not provider.key_env:
        return settings.openai_api_key.get_secret_value()
    return secret_variable(provider.key_env, environment).get_secret_value()


def _default(settings: Settings) -> tuple[Provider, ...]:
    if not settings.has_model:
        return ()
    return (
        Provider(
            name=DEFAULT,
            base_url=settings.openai_base_url or OPENAI,
            model=settings.model_cheap,
            concurrency=DEFAULT_CONCURRENCY,
        ),
    )


def _document(path: Path) -> object:
    import yaml

    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))  # JSON is YAML, too
    except yaml.YAMLError as error:
        raise ValueError(f"it is neither YAML nor JSON: {error}") from None
