"""The config of a source as its platform reads it: the types of its keys; all problems are reported at once.

A message says what is accepted. It never repeats what may be a secret: the value of such a key, or of an unknown one.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Self, cast
from urllib.parse import urlsplit

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    PlainValidator,
    Strict,
    StringConstraints,
    ValidationInfo,
    WrapValidator,
)

from ingestion_pipeline.sources.declarations import BadField, FileModel, model_of, refused, stated_keys, validated
from ingestion_pipeline.sources.source import BadConfig
from ingestion_pipeline.urls import secret_parameter, without_credentials

_SECRET_KEY = re.compile(r"token|key|secret|passw|pwd|auth|credential", re.IGNORECASE)
_AS_SENTENCE = ("is ", "holds ")


def refusal(key: str, value: object, accepted: str) -> str:
    """Return the message about a value that is not accepted; that of a secret is not repeated."""
    safe_value = without_credentials(value) if isinstance(value, str) else value
    description = "not accepted" if _SECRET_KEY.search(key) else repr(safe_value)
    return f"is {description}; accepted: {accepted}"


def accepted(description: str) -> WrapValidator:
    """Return an annotation that replaces the errors of a type by one message: what is accepted."""
    return refused(lambda key, value: refusal(key, value, description))


def _web_address(address: str, info: ValidationInfo) -> str:
    """Return the address; it must be http(s) without credentials."""
    try:
        parts = urlsplit(address)
        has_credentials = "@" in parts.netloc
        is_web = not address or (parts.scheme in {"http", "https"} and bool(parts.hostname))
    except ValueError:
        has_credentials, is_web = "@" in address, False
    if has_credentials:
        raise ValueError("holds credentials; accepted: an address without them")
    if name := secret_parameter(address):
        raise ValueError(
            f"holds a secret, {name}; take it out, put it into a variable and write"
            f" auth: {{place: query, name: {name}, env: VARIABLE}}"
        )
    if not is_web:
        raise ValueError(refusal(info.field_name or "", address, "an http or https address"))
    return address


def _stripped(value: object, info: ValidationInfo) -> str:
    if not isinstance(value, str):
        raise ValueError(refusal(info.field_name or "", value, "text"))  # noqa: TRY004 - pydantic's kind of error
    return value.strip()


_Stripped = Annotated[str, BeforeValidator(_stripped)]
Text = Annotated[_Stripped | None, AfterValidator(lambda text: text or None)]
Address = Annotated[_Stripped, AfterValidator(_web_address)]
Weight = Annotated[float, Field(gt=0, le=1_000), accepted("a number above 0 to 1000")]
TrueOrFalse = Annotated[bool, Strict(), accepted("true or false")]
Word = Annotated[str, Strict(), StringConstraints(strip_whitespace=True, to_lower=True, min_length=1)]


def whole(least: int, most: int) -> BeforeValidator:
    """Return the annotation of a whole number within bounds."""

    def check(value: object, info: ValidationInfo) -> object:
        if type(value) is not int or not least <= value <= most:
            raise ValueError(refusal(info.field_name or "", value, f"a whole number from {least} to {most}"))
        return value

    return BeforeValidator(check)


class ConfigSection(FileModel):
    """A map of the config; its keys are those of the platform."""

    unknown_key: ClassVar[str] = "is no key of it"
    not_a_mapping: ClassVar[str] = "accepted: a map"

    @classmethod
    def file_keys(cls) -> list[str]:
        """Return the keys in alphabetical order."""
        return sorted(key for key in super().file_keys() if key != "url")


class PlatformConfig(ConfigSection):
    """The config of a source of any platform, with the URL of the source."""

    url: Address = ""
    api_base: Address = ""
    ignore_robots: TrueOrFalse = False
    weight: Weight = 1.0

    @classmethod
    def of(cls, platform: str, url: str, config: Mapping[str, object]) -> Self:
        """Return the checked config of a source; raise BadConfig with all its problems."""
        entry, bad = validated(cls, {**config, "url": url})
        if "url" in config:
            bad.append(BadField("url", f"{cls.unknown_key}; there are: {', '.join(cls.file_keys())}"))
        if entry is not None and not bad:
            return entry
        bad.sort(key=lambda problem: problem.message.startswith(cls.unknown_key))
        lines = [
            f"{problem.field}{'' if problem.message.startswith(_AS_SENTENCE) else ':'} {problem.message}"
            for problem in bad
        ]
        raise BadConfig(f"config of platform {platform!r}: " + "; ".join(lines))

    @property
    def requested_url(self) -> str:
        """Return where the list is requested."""
        return self.api_base or self.url


class _FieldMap(FileModel):
    unknown_key: ClassVar[str] = "no field of it"  # without its value, as for an unknown key
    not_a_mapping: ClassVar[str] = "is {value}; accepted: a map from field to text"


def parsed_by(parse: Callable[[str], object]) -> PlainValidator:
    """Return the annotation of a text that is parsed; None if it is blank."""

    def read(value: object, info: ValidationInfo) -> object:
        text = _stripped(value, info)
        return parse(text) if text else None

    return PlainValidator(read)


def field_map(names: Sequence[str], parse: Callable[[str], object]) -> PlainValidator:
    """Return the annotation of a map from field to a text, or to texts that are tried in turn."""

    def parsed(value: object) -> list[object]:
        texts = cast("list[object]", value) if isinstance(value, list) else [value]
        if not texts or not all(isinstance(text, str) for text in texts):
            raise ValueError("accepted: text, or a list of texts to try in turn")
        results: list[object] = []
        mistakes: list[str] = []
        for text in texts:
            try:
                results.append(parse(str(text).strip()))
            except ValueError as error:
                mistakes.append(str(error))
        if mistakes:
            raise ValueError("; ".join(mistakes))
        return results

    model = model_of(_FieldMap, dict.fromkeys(names, Annotated[Any, PlainValidator(parsed)]))
    return PlainValidator(lambda value: stated_keys(model.model_validate(value)))
