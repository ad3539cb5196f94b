"""Validate a declared source: from a mapping (YAML, CLI, Launchpad) to a `Definition`."""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, cast, get_args

from pydantic import AfterValidator, BeforeValidator, Field, PlainValidator, ValidationInfo, field_validator

from ingestion_pipeline.sources.file_model import BadField, FileModel, Flag, expect, quoted, validated
from ingestion_pipeline.sources.platforms import DEFAULTS, READERS, recognize_platform
from ingestion_pipeline.sources.registry import BY_FILE
from ingestion_pipeline.sources.source import SERIES_ID, SOURCE_ID, Definition, Kind, Source, Tier
from ingestion_pipeline.urls import checked_url, secret_parameter, without_credentials

_TierName = Literal["hot", "warm", "cold", "auto"]
TIERS: tuple[str, ...] = get_args(_TierName)
_UNSTORABLE = re.compile("[\0\ud800-\udfff]")  # no database stores NUL or half a character

Check = Callable[[Definition], Iterable[BadField]]


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"must be text, not {type(value).__name__}")  # noqa: TRY004 - pydantic's kind of error
    if _UNSTORABLE.search(value):
        raise ValueError("holds NUL or half a character, which no database keeps; remove it")
    return value


def _kind(value: object) -> Kind:
    if value not in list(Kind):  # an open set: installed packages add to it
        raise ValueError(f"{quoted(value)} is no kind; there are: {', '.join(Kind)}")
    return Kind(cast("str", value))


def _source_id(value: str) -> str:
    if not SOURCE_ID.fullmatch(value):
        raise ValueError(f"{quoted(value)} is no id: write kind:name with a-z 0-9 : . _ - (at most 120)")
    return value


def _group_id(value: str, info: ValidationInfo) -> str:
    if not SERIES_ID.fullmatch(value):
        raise ValueError(f"{quoted(value)} is no {info.field_name} id: use a-z 0-9 : . _ - (at most 120)")
    return value


def _plain_data(config: object) -> dict[str, Any]:
    if not isinstance(config, Mapping):
        raise ValueError(f"must be a mapping, not {type(config).__name__}")  # noqa: TRY004 - as above
    plain = dict(cast("Mapping[str, Any]", config))
    try:
        json.dumps(plain, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"must be plain data (text, numbers, lists, mappings): {error}") from None
    keys, texts = _texts_of(plain)
    if any(not isinstance(key, str) for key in keys):
        raise ValueError("its keys must be text; write them in quotes")
    if any(_UNSTORABLE.search(text) for text in [*map(str, keys), *texts]):
        raise ValueError("holds NUL or half a character, which no database keeps")
    return plain


def _texts_of(config: object) -> tuple[list[object], list[str]]:
    """Return every key and every text in it, at whatever depth."""
    keys: list[object] = []
    texts: list[str] = []
    left = [config]
    while left:
        value = left.pop()
        if isinstance(value, str):
            texts.append(value)
        elif isinstance(value, dict):
            mapping = cast("dict[object, object]", value)
            keys += mapping
            left += mapping.values()
        elif isinstance(value, list | tuple):
            left += cast("Sequence[object]", value)
    return keys, texts


Text = Annotated[str, BeforeValidator(_text)]
GroupId = Annotated[Text, AfterValidator(_group_id)]
_SourceKind = Annotated[Kind, PlainValidator(_kind, json_schema_input_type=str)]
_TierChoice = Annotated[_TierName, expect(f"{{value}} is no tier; there are: {', '.join(TIERS)}")]


class SourceEntry(FileModel):
    """An entry under `sources:`. The URL of a website may be given without a scheme."""

    id: Annotated[Text, AfterValidator(_source_id)] = Field(description="kind:name, such as series:solo")
    kind: _SourceKind
    url: Text
    name: Text | None = Field(default=None, description="display name")
    platform: Text | None = Field(default=None, validate_default=True, description="recognised by the URL if possible")
    tier: _TierChoice = Field(default="auto", description="how often it is checked")
    config: Annotated[dict[str, Any], BeforeValidator(_plain_data)] = Field(default={}, description="for its platform")
    enabled: Flag = True
    series: GroupId | None = Field(default=None, description="the series it belongs to; its own name by default")
    company: GroupId | None = Field(default=None, description="the company it belongs to")

    @classmethod
    def rules(cls, values: Mapping[str, Any]) -> Iterator[BadField]:
        """Yield the problem of an id that names another kind."""
        match = SOURCE_ID.fullmatch(values["id"]) if isinstance(values.get("id"), str) else None
        kind: object = values.get("kind")
        if match and kind in list(Kind) and match["kind"] != kind:
            yield BadField("id", f"{values['id']!r} must begin with its kind, {kind}:")

    @field_validator("url")
    @classmethod
    def _check_url(cls, url: str, info: ValidationInfo) -> str:
        if info.data.get("kind") is Kind.WEBSITE and "://" not in url:
            url = f"https://{url.strip().lstrip('/')}"
        url = checked_url(url)
        if name := secret_parameter(url):
            raise ValueError(
                f"URL {without_credentials(url)!r} has a secret, {name}, which would be stored and shown;"
                " take it out. Where a platform reads `auth`, put it into a variable and write"
                f" auth: {{place: query, name: {name}, env: VARIABLE}} into config"
            )
        return url

    @field_validator("platform")
    @classmethod
    def _check_platform(cls, platform: str | None, info: ValidationInfo) -> str | None:
        """Return the platform; a bad kind or URL leaves it open."""
        kind: Kind | None = info.data.get("kind")
        url: str | None = info.data.get("url")
        if kind is None or not (platform or url):
            return platform
        accepted = READERS.get(kind, ())
        there_are = f"for {kind} there are: {', '.join(accepted) or 'none yet'}"
        if platform and platform not in accepted:
            raise ValueError(f"{quoted(platform)} is no platform; {there_are}")
        recognized = recognize_platform(url or "")
        by_url = recognized.name if recognized and recognized.name in accepted else DEFAULTS.get(kind)
        if (reader := platform or by_url) not in accepted:
            raise ValueError(f"is missing and the URL does not show it; {there_are}")
        return reader

    def definition(self) -> Definition:
        """Return the definition, with defaults filled in."""
        own_series = self.id.partition(":")[2] if self.kind is Kind.SERIES else None
        stated: dict[str, Any] = dict(self)
        stated["tier"] = None if self.tier == "auto" else Tier(self.tier)
        stated["series"] = self.series or own_series
        return Definition(**stated)


def definition_of(raw: Mapping[str, Any], *, check: Check | None = None) -> tuple[Definition | None, list[BadField]]:
    """Return the definition, or None and all its mistakes; `check` applies the rules of its system in any case."""
    entry, bad = validated(SourceEntry, raw)
    checkable = entry or _without_mistakes(raw, bad)
    if check is not None and checkable is not None:
        bad = [*bad, *check(checkable.definition())]
    return (None, bad) if entry is None or bad else (entry.definition(), [])


def _without_mistakes(raw: Mapping[str, Any], bad: Sequence[BadField]) -> SourceEntry | None:
    """Return the entry without its bad fields; None if its config cannot be checked without them."""
    wrong = {problem.field for problem in bad}
    kind = raw.get("kind")
    needed = {"kind", "config"} if kind in list(DEFAULTS) else {"kind", "config", "url", "platform"}
    if wrong & needed:
        return None
    stand_ins = {"id": f"{kind}:unknown", "url": "https://unknown.invalid/"}
    good = {key: value for key, value in raw.items() if key not in wrong}
    return validated(SourceEntry, good | {key: stand_ins[key] for key in wrong & stand_ins.keys()})[0]


def declaration(source: Source) -> dict[str, Any]:
    """Return the source's declaration, as `definition_of` takes it; only what is set."""
    values = {
        "id": source.id,
        "kind": source.kind.value,
        "url": source.url,
        "name": source.name,
        "platform": source.platform,
        "tier": source.tier.value if source.tier_pinned else "auto",
        "config": dict(source.config),
        "enabled": source.status_reason != BY_FILE,
        "series": source.series_id,
        "company": source.company_id,
    }
    return {key: value for key, value in values.items() if value is not None}
