"""Validate what people declare in files, on the command line and in the Launchpad: sources and recipients.

A mapping becomes a `Definition` or a `Recipient`, and every mistake is reported at once, by its key; `FileModel` does
so for any file that people write. Recipients are declared beside sources because the same files hold both; what is
sent to whom is decided in `notices`.
"""

import base64
import binascii
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar, cast, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    PlainValidator,
    Strict,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    create_model,
    field_validator,
    model_validator,
)
from pydantic_core import ErrorDetails, InitErrorDetails, PydanticCustomError

from ingestion_pipeline.sources.platforms import DEFAULTS, READERS, recognize_platform
from ingestion_pipeline.sources.registry import BY_FILE
from ingestion_pipeline.sources.source import (
    ALERTS,
    DEFAULT_KINDS,
    NOTICE_KINDS,
    OWN_SERVICES,
    SECRET_PREFIX,
    SERIES_ID,
    SOURCE_ID,
    Definition,
    Follow,
    Kind,
    Mode,
    Recipient,
    Source,
    Tier,
    is_webhook,
)
from ingestion_pipeline.urls import checked_url, secret_parameter, without_credentials

MAX_SHOWN_CHARACTERS = 130


@dataclass(frozen=True, slots=True)
class BadField:
    """One field that is not accepted, with the message for people."""

    field: str
    message: str


@dataclass(frozen=True, slots=True)
class Missing:
    """Annotation of a required field: the message where it is left out."""

    message: str


def quoted(value: object) -> str:
    """Return a value as a message repeats it."""
    return repr(value)[:MAX_SHOWN_CHARACTERS]


def as_mapping(value: object) -> Mapping[str, Any]:
    """Return the value if it is a mapping, else an empty one."""
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}


def refused(message: Callable[[str, object], str]) -> WrapValidator:
    """Return an annotation that replaces the errors of a type by one message, made from the key and the value."""

    def validate(value: object, handler: ValidatorFunctionWrapHandler, info: ValidationInfo) -> object:
        try:
            return handler(value)
        except ValidationError:
            raise ValueError(message(info.field_name or "", value)) from None

    return WrapValidator(validate)


def expect(message: str) -> WrapValidator:
    """Return an annotation that replaces the errors of a type by one message; {value} is what was written."""
    return refused(lambda _, value: message.replace("{value}", quoted(value)))


def listed(message: str) -> BeforeValidator:
    """Return an annotation of a list; the message says what is accepted."""

    def validate(value: object) -> list[object]:
        if not isinstance(value, list | tuple):
            raise ValueError(message)  # noqa: TRY004 - pydantic's kind of error
        return list(cast("Sequence[object]", value))

    return BeforeValidator(validate)


Weight = Annotated[float, Field(gt=0, le=1_000), expect("must be a number above 0 to 1000, not {value}")]
Flag = Annotated[bool, Strict(), expect("must be true or false, not {value}")]


class FileModel(BaseModel):
    """A mapping of a file; a key without a value counts as left out."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_by_name=True, validate_by_alias=True)
    unknown_key: ClassVar[str] = "unknown key"
    not_a_mapping: ClassVar[str] = "must be a mapping, not {value}"

    @classmethod
    def mistakes(cls, values: Mapping[str, Any]) -> Iterator[BadField]:  # noqa: ARG003 - for subclasses
        """Yield the problems that concern several keys; `values` is what the file states, unchecked."""
        return iter(())

    @classmethod
    def file_keys(cls) -> list[str]:
        """Return the keys that a file may state, in their order."""
        return [str(field.validation_alias or name) for name, field in cls.model_fields.items()]

    @model_validator(mode="wrap")
    @classmethod
    def _collect_problems(cls, raw: object, handler: ModelWrapValidatorHandler[Self]) -> Self:
        """Validate all fields, alone and together, and raise one error with all problems."""
        if isinstance(raw, cls):
            return raw
        if not isinstance(raw, Mapping):
            raise ValueError(cls.not_a_mapping.replace("{value}", quoted(raw)))  # noqa: TRY004 - pydantic's kind of error
        accepted = {*cls.file_keys(), *cls.model_fields}
        stated = cast("Mapping[Any, Any]", raw)
        values = {key: value for key, value in stated.items() if key in accepted and value is not None}
        unknown = f"{cls.unknown_key}; there are: {', '.join(cls.file_keys())}"
        problems = [
            _detail((str(key)[:80],), unknown.replace("{key}", quoted(key))) for key in stated if key not in accepted
        ]
        model = None
        try:
            model = handler(values)
        except ValidationError as error:
            problems += [_detail(detail["loc"], cls._message(detail)) for detail in error.errors(include_url=False)]
        problems += [_detail(tuple(problem.field.split(".")), problem.message) for problem in cls.mistakes(values)]
        if model is None or problems:
            raise ValidationError.from_exception_data(cls.__name__, problems)
        return model

    @classmethod
    def _message(cls, detail: ErrorDetails) -> str:
        if detail["type"] == "missing":
            fields = {field.validation_alias or name: field for name, field in cls.model_fields.items()}
            notes = (note for note in fields[str(detail["loc"][-1])].metadata if isinstance(note, Missing))
            return next((note.message for note in notes), "is missing")
        if detail["type"] == "value_error":
            return str(detail.get("ctx", {})["error"])
        return detail["msg"]


def _detail(loc: tuple[int | str, ...], message: str) -> InitErrorDetails:
    return InitErrorDetails(type=PydanticCustomError("mistake", cast("Any", message)), loc=loc, input=None)


Model = TypeVar("Model", bound=FileModel)


def validated(model: type[Model], raw: object) -> tuple[Model | None, list[BadField]]:
    """Return the model, or None and everything that is wrong with the data."""
    try:
        return model.model_validate(raw), []
    except ValidationError as error:
        details = error.errors(include_url=False, include_input=False)
    bad = [BadField(field_path(detail["loc"]), detail["msg"].removeprefix("Value error, ")) for detail in details]
    return None, list(dict.fromkeys(bad))


_PREFIX = "of_"  # of the fields below: a key may have the name of a method of the model


def model_of(base: type[Model], types: Mapping[str, Any]) -> type[Model]:
    """Return a model of optional keys that are known only when the program runs, each with its type."""
    fields: dict[str, Any] = {
        f"{_PREFIX}{key}": (type_, Field(default=None, validation_alias=key)) for key, type_ in types.items()
    }
    return create_model(f"{base.__name__}Keys", __base__=base, **fields)


def stated_keys(entry: FileModel) -> dict[str, Any]:
    """Return what a model by `model_of` holds, by key."""
    return {name.removeprefix(_PREFIX): value for name, value in entry if value is not None}


def field_path(loc: Sequence[int | str]) -> str:
    """Return an error's place as people write it, `setup[0].click`, without tags of unions; a bad key is its map's."""
    path = ""
    for part in loc[:-2] if loc[-1:] == ("[key]",) else loc:
        if isinstance(part, int):
            path += f"[{part}]"
        elif not part.startswith("<"):
            path += f".{part}" if path else part
    return path


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
    keys, texts = texts_of(plain)
    if any(not isinstance(key, str) for key in keys):
        raise ValueError("its keys must be text; write them in quotes")
    if any(_UNSTORABLE.search(text) for text in [*map(str, keys), *texts]):
        raise ValueError("holds NUL or half a character, which no database keeps")
    return plain


def texts_of(config: object) -> tuple[list[object], list[str]]:
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


_DURATION = re.compile(r"(?P<count>[1-9][0-9]{0,5})(?P<unit>[mhd])")
_UNIT_SECONDS = {"m": 60, "h": 3_600, "d": 86_400}
SHORTEST_DELAY = timedelta(minutes=10)  # twice the interval of maintenance, which measures it


def _duration(value: object) -> int:
    match = _DURATION.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f"{quoted(value)} is no duration: write 30m, 2h or 1d")
    seconds = int(match["count"]) * _UNIT_SECONDS[match["unit"]]
    if seconds < SHORTEST_DELAY.total_seconds():
        raise ValueError(f"{value} is shorter than {duration_text(SHORTEST_DELAY)}, which cannot be measured")
    return seconds


def duration_text(length: timedelta) -> str:
    """Return the duration as a source file has it."""
    seconds = int(length.total_seconds())
    unit = next(unit for unit in ("d", "h", "m") if seconds % _UNIT_SECONDS[unit] == 0 or unit == "m")
    return f"{seconds // _UNIT_SECONDS[unit]}{unit}"


_Delay = Annotated[int, PlainValidator(_duration, json_schema_input_type=str)]
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
    max_delay: _Delay | None = Field(default=None, description="its freshness objective: 30m, 2h, 1d")

    @classmethod
    def mistakes(cls, values: Mapping[str, Any]) -> Iterator[BadField]:
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
        stated["max_delay_seconds"] = stated.pop("max_delay")
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
        "max_delay": source.max_delay_seconds and duration_text(timedelta(seconds=source.max_delay_seconds)),
    }
    return {key: value for key, value in values.items() if value is not None}


_ALL_ALERTS = "alerts"
LANGUAGE_LENGTH = 20  # the width of the column
_MAIL = re.compile(r"mailto:[^@\s?&,;/<>\"]+@[A-Za-z0-9.-]+\.?[A-Za-z0-9]")
_LANGUAGE = re.compile(r"[a-z]{2,8}(-[a-z0-9]{1,8})*")
_SECRET_BYTES = range(24, 65)  # by the Standard Webhooks convention


def _id(value: object) -> str:
    if isinstance(value, str) and SERIES_ID.fullmatch(value):
        return value
    raise ValueError(f"{quoted(value)} is no id: use a-z 0-9 : . _ - (at most 120)")


def _address(value: object) -> str:
    """Return the address; its scheme selects the channel."""
    if not isinstance(value, str):
        raise ValueError(f"must be text, not {type(value).__name__}")  # noqa: TRY004 - pydantic's kind of error
    if value == OWN_SERVICES or _MAIL.fullmatch(value):
        return value
    if is_webhook(value):
        checked_url(value)
        return value
    raise ValueError(
        f"{value.partition(':')[0][:20]!r} leads to no recipient; write https://... (a signed webhook),"
        " mailto:name@host, or notify: for the services that INGESTION_NOTIFY_URLS names; other services belong there"
    )


def _language(value: object) -> str:
    text = value.lower() if isinstance(value, str) else ""
    if len(text) > LANGUAGE_LENGTH or not _LANGUAGE.fullmatch(text):
        raise ValueError(f"{quoted(value)} is no language; write en, pt-br, ...")
    return text


def _kinds(value: object) -> tuple[str, ...]:
    """Return each kind once, with `alerts` expanded."""
    kinds = cast("list[str]", value) if isinstance(value, list | tuple) else []
    if not kinds or not all(kind in (*NOTICE_KINDS, *ALERTS, _ALL_ALERTS) for kind in kinds):
        message = f"must be a list of: {', '.join((*NOTICE_KINDS, *ALERTS))}; {_ALL_ALERTS} is the last {len(ALERTS)}"
        raise ValueError(message)
    named = [name for kind in kinds for name in (ALERTS if kind == _ALL_ALERTS else (kind,))]
    return tuple(dict.fromkeys(named))


def _as_follow(value: object) -> object:
    return {"series": value} if isinstance(value, str) else value


_Id = Annotated[str, BeforeValidator(_id)]
_Mode = Annotated[Mode, expect(f"{{value}} is no mode; there are: {', '.join(Mode)}")]
Language = Annotated[str, BeforeValidator(_language)]


class FollowEntry(FileModel):
    """An entry under `follows:`: the id of a series, alone or with its own mode and language."""

    series: _Id
    mode: _Mode | None = None
    language: Language | None = None


def _each_once(follows: tuple[FollowEntry, ...]) -> tuple[FollowEntry, ...]:
    names = [follow.series for follow in follows]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError("; ".join(f"{name!r} is listed twice" for name in twice))
    return follows


_Follow = Annotated[FollowEntry, BeforeValidator(_as_follow, json_schema_input_type=str | FollowEntry)]


class RecipientEntry(FileModel):
    """An entry under `recipients:`."""

    id: _Id
    address: Annotated[str, BeforeValidator(_address)]
    mode: _Mode = Mode.IMMEDIATE
    language: Language | None = None
    kinds: Annotated[tuple[str, ...], BeforeValidator(_kinds)] = DEFAULT_KINDS
    follows: Annotated[tuple[_Follow, ...], listed("must be a list of series ids"), AfterValidator(_each_once)] = ()


def recipient_of(raw: Mapping[str, Any]) -> tuple[Recipient | None, list[BadField]]:
    """Return the recipient, or None and everything that is wrong with it."""
    entry, bad = validated(RecipientEntry, raw)
    if entry is None:
        return None, bad
    stated: dict[str, Any] = dict(entry)
    stated["follows"] = tuple(Follow(**dict(follow)) for follow in entry.follows)
    return Recipient(**stated), []


def bad_language(language: str | None) -> list[BadField]:
    """Return what is wrong with a language; None is accepted, and means any."""
    try:
        TypeAdapter(Language | None).validate_python(language)
    except ValidationError as error:
        return [BadField("language", str(error.errors()[0].get("ctx", {})["error"]))]
    return []


def bad_secret(secret: str) -> list[BadField]:
    """Return what is wrong with a webhook's secret."""
    try:
        size = len(base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True))
    except (binascii.Error, ValueError):
        size = 0
    if secret.startswith(SECRET_PREFIX) and size in _SECRET_BYTES:
        return []
    message = f"must be {SECRET_PREFIX} and the base64 of 24 to 64 bytes; left out, one is made"
    return [BadField("secret", message)]
