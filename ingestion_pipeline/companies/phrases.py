"""Phrases in several languages that patterns are compiled from, read from a package's `phrases.yaml`.

The phrases are regular expressions. Line breaks inside one are dropped, and `{{name}}` stands for an earlier phrase.
"""

import re
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Any, cast

import yaml

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times faster, where PyYAML was built with libyaml


class Phrases:
    """The phrases of one file by name: single ones, lists, and mappings."""

    def __init__(self, document: Mapping[str, object]) -> None:
        self._phrases: dict[str, object] = {}
        for name, value in document.items():
            self._phrases[name] = self._expanded(value)

    def __getitem__(self, name: str) -> str:
        """Return the single phrase of that name."""
        return cast("str", self._phrases[name])

    def each(self, name: str) -> Sequence[str]:
        """Return the list of that name."""
        return cast("Sequence[str]", self._phrases[name])

    def by_name(self, name: str) -> Mapping[str, str]:
        """Return the mapping of that name."""
        return cast("Mapping[str, str]", self._phrases[name])

    def _expanded(self, value: object) -> object:
        if isinstance(value, list):
            return [self._expanded(part) for part in cast("list[object]", value)]
        if isinstance(value, dict):
            return {name: self._expanded(part) for name, part in cast("dict[str, object]", value).items()}
        if not isinstance(value, str):
            raise TypeError(f"{value!r} is no phrase; quote it")
        return re.sub(r"\{\{(\w{1,40})\}\}", lambda reference: self[reference[1]], value.replace("\n", ""))


def read_yaml(package: str, file: str) -> Any:  # noqa: ANN401 - whatever the file says
    """Return the content of a YAML file of the package."""
    return yaml.load((resources.files(package) / file).read_bytes(), Loader=_LOADER)  # noqa: S506 - a safe loader


@cache
def phrases_of(package: str) -> Phrases:
    """Return the phrases of the package."""
    return Phrases(read_yaml(package, "phrases.yaml"))
