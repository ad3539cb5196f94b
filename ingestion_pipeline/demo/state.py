"""The state of the demo site: a small frozen record, stored as JSON in its home."""

import json
import os
import tempfile
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import cast


class DemoStateError(ValueError):
    """A stored state that cannot be read; the message names the file and the cure."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoState:
    """Everything the site's content depends on; the default is the site as shipped."""

    new_chapters: int = 0  # of The Lighthouse Keeper and The Clockmaker's Map, beyond the shipped
    is_broken: bool = False  # see `break_site`
    is_overloaded: bool = False  # the orchard answers 503 until repaired, not only at first


def mutate(state: DemoState) -> DemoState:
    """Add a chapter to two series, a course to each catalogue, change one, and other jobs."""
    return replace(state, new_chapters=state.new_chapters + 1)


def break_site(state: DemoState) -> DemoState:
    """Break the site: error pages, an empty listing, lost pages, a 503, and renamed fields of a job board's API."""
    return replace(state, is_broken=True)


def overload(state: DemoState) -> DemoState:
    """Make the orchard's server answer 503 to everybody."""
    return replace(state, is_overloaded=True)


def repair(state: DemoState) -> DemoState:
    """End all failures; chapters that came out meanwhile stay."""
    return replace(state, is_broken=False, is_overloaded=False)


def state_file(home: Path) -> Path:
    """Return where the state of the site in `home` is stored."""
    return home / "demo" / "state.json"


def read_state(home: Path) -> DemoState:
    """Return the stored state, or the shipped one if there is none; a damaged file is an error."""
    path = state_file(home)
    try:
        return _state_from(json.loads(path.read_bytes()))
    except FileNotFoundError:
        return DemoState()
    except ValueError as error:
        raise DemoStateError(f"{path} does not hold a demo state ({error}); delete it to restart the demo") from error


def write_state(home: Path, state: DemoState) -> None:
    """Store the state atomically."""
    write_atomically(state_file(home), json.dumps(asdict(state), indent=2) + "\n")


def write_atomically(path: Path, text: str) -> None:
    """Write `text` to `path` atomically; create its folder if needed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    draft = Path(name)
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def _state_from(document: object) -> DemoState:
    if not isinstance(document, dict):
        raise ValueError("not a JSON object")  # noqa: TRY004 - a damaged file, not a caller's mistake
    values = cast("dict[str, object]", document)
    if unknown := values.keys() - {field.name for field in fields(DemoState)}:
        raise ValueError(f"unknown: {', '.join(sorted(unknown))}")
    return DemoState(
        new_chapters=_count(values, "new_chapters"),
        is_broken=_flag(values, "is_broken"),
        is_overloaded=_flag(values, "is_overloaded"),
    )


def _count(values: dict[str, object], name: str) -> int:
    value = values.get(name, 0)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{name} is not a count: {value!r}")
    return value


def _flag(values: dict[str, object], name: str) -> bool:
    value = values.get(name, False)
    if not isinstance(value, bool):
        raise ValueError(f"{name} is neither true nor false: {value!r}")  # noqa: TRY004 - as above
    return value
