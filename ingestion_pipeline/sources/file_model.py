"""The base of the pydantic models of files that people write: every mistake is reported at once, by its key."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Self, TypeVar, cast

from pydantic import (
    BaseModel,
    ConfigDict,
    ModelWrapValidatorHandler,
    Strict,
    ValidationError,
    ValidatorFunctionWrapHandler,
    WrapValidator,
    model_validator,
)
from pydantic_core import ErrorDetails, InitErrorDetails, PydanticCustomError

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


def expect(message: str) -> WrapValidator:
    """Return an annotation that replaces the errors of a type by one message; {value} is what was written."""

    def validate(value: object, handler: ValidatorFunctionWrapHandler) -> object:
        try:
            return handler(value)
        except ValidationError:
            raise ValueError(message.replace("{value}", quoted(value))) from None

    return WrapValidator(validate)


Flag = Annotated[bool, Strict(), expect("must be true or false, not {value}")]


class FileModel(BaseModel):
    """A mapping of a file; a key without a value counts as left out."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_by_name=True, validate_by_alias=True)
    unknown_key: ClassVar[str] = "unknown key"
    not_a_mapping: ClassVar[str] = "must be a mapping, not {value}"

    @classmethod
    def rules(cls, values: Mapping[str, Any]) -> Iterator[BadField]:  # noqa: ARG003 - for subclasses
        """Yield the problems that concern several keys; `values` is what the file states, unchecked."""
        return iter(())

    @classmethod
    def file_keys(cls) -> list[str]:
        """Return the keys that a file may state, in their order."""
        return [str(field.validation_alias or name) for name, field in cls.model_fields.items()]

    @model_validator(mode="wrap")
    @classmethod
    def _collect_problems(cls, raw: object, handler: ModelWrapValidatorHandler[Self]) -> Self:
        """Validate all fields and rules, and raise one error with all problems."""
        if isinstance(raw, cls):
            return raw
        if not isinstance(raw, Mapping):
            raise ValueError(cls.not_a_mapping.replace("{value}", quoted(raw)))  # noqa: TRY004 - pydantic's kind of error
        accepted = {*cls.file_keys(), *cls.model_fields}
        stated = cast("Mapping[Any, Any]", raw)
        values = {key: value for key, value in stated.items() if key in accepted and value is not None}
        unknown = f"{cls.unknown_key}; there are: {', '.join(cls.file_keys())}"
        problems = [_detail((str(key)[:80],), unknown) for key in stated if key not in accepted]
        model = None
        try:
            model = handler(values)
        except ValidationError as error:
            problems += [_detail(detail["loc"], cls._message(detail)) for detail in error.errors(include_url=False)]
        problems += [_detail(tuple(rule.field.split(".")), rule.message) for rule in cls.rules(values)]
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


def field_path(loc: Sequence[int | str]) -> str:
    """Return an error's place as people write it, `setup[0].click`, without tags of unions; a bad key is its map's."""
    path = ""
    for part in loc[:-2] if loc[-1:] == ("[key]",) else loc:
        if isinstance(part, int):
            path += f"[{part}]"
        elif not part.startswith("<"):
            path += f".{part}" if path else part
    return path
