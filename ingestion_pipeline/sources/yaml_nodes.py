# pyright: basic
# PyYAML's stubs leave its loader untyped; this module is the whole of what we need from it.
"""YAML as nodes that know their lines; plain data only, no aliases, no abyss."""

from __future__ import annotations

from typing import Any

import yaml
from yaml.composer import ComposerError

# libyaml's loader where PyYAML was built with it: ten times faster, which a sensor's tick feels.
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
MAX_DEPTH = 50  # a source's config is three or four levels deep; libyaml recurses without a limit


def compose(body: bytes) -> yaml.Node | None:
    """The document's root node; None for an empty one."""
    _refuse_traps(body)
    return yaml.compose(body, Loader=_LOADER)


def construct(node: yaml.Node) -> Any:  # noqa: ANN401 - whatever the file says
    """The data a node stands for."""
    loader = _LOADER("")
    try:
        return loader.construct_document(node)
    finally:
        loader.dispose()


def _refuse_traps(body: bytes) -> None:
    """A few lines of aliases can stand for gigabytes, and deep nesting for a crash."""
    depth = 0
    for event in yaml.parse(body, Loader=_LOADER):
        if isinstance(event, yaml.AliasEvent):
            said = "aliases (*name) are not accepted; write the value out"
            raise ComposerError(None, None, said, event.start_mark)
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > MAX_DEPTH:
            raise ComposerError(None, None, "nested too deeply", event.start_mark)
