# pyright: basic
# PyYAML's stubs leave its loader untyped; this module is the whole of what we need from it.
"""YAML as nodes that know their lines; plain data only, and no aliases."""

from __future__ import annotations

from typing import Any

import yaml
from yaml.composer import ComposerError


class _Loader(yaml.SafeLoader):
    """A few lines of aliases can stand for gigabytes: they are refused."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            said = "aliases (*name) are not accepted; write the value out"
            raise ComposerError(None, None, said, self.peek_event().start_mark)
        return super().compose_node(parent, index)


def compose(body: bytes) -> yaml.Node | None:
    """The document's root node; None for an empty one."""
    return yaml.compose(body, Loader=_Loader)


def construct(node: yaml.Node) -> Any:  # noqa: ANN401 - whatever the file says
    """The data a node stands for."""
    loader = _Loader("")
    try:
        return loader.construct_document(node)
    finally:
        loader.dispose()
