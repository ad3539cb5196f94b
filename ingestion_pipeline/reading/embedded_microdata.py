"""Microdata: `itemscope`, `itemprop` and `itemref` as things in the form of JSON-LD."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from selectolax.lexbor import LexborHTMLParser, LexborNode

MAX_ITEMS = 5_000
MAX_DEPTH = 30  # items inside items; an `itemref` may lead in a circle

_ADDRESSES = {"a": "href", "area": "href", "link": "href", "object": "data"} | dict.fromkeys(
    ("audio", "embed", "iframe", "img", "source", "track", "video"), "src"
)
_VALUES = {"data": "value", "meter": "value", "time": "datetime"}
_UNSEEN = frozenset({"script", "style", "template", "noscript"})


def microdata_of(tree: LexborHTMLParser) -> Iterator[dict[str, object]]:
    """Every item of the page that is no property of another."""
    for node in tree.css("[itemscope]")[:MAX_ITEMS]:
        if "itemprop" not in node.attrs:
            yield _item(tree, node, 0)


def _item(tree: LexborHTMLParser, node: LexborNode, depth: int) -> dict[str, object]:
    item: dict[str, object] = {}
    if types := (node.attrs.get("itemtype") or "").split():
        item["@type"] = types[0] if len(types) == 1 else types
    if identity := (node.attrs.get("itemid") or "").strip():
        item["@id"] = identity
    if depth >= MAX_DEPTH:
        return item
    for owner in _properties(tree, node):
        value = _value(tree, owner, depth)
        for name in (owner.attrs.get("itemprop") or "").split():
            _add(item, name, value)
    return item


def _properties(tree: LexborHTMLParser, node: LexborNode) -> Iterator[LexborNode]:
    """The elements with a property of the item: its own, then those it refers to."""
    yield from _below(node)
    for identity in (node.attrs.get("itemref") or "").split()[:MAX_DEPTH]:
        referred = tree.css_first(f'[id="{_quoted(identity)}"]')
        if referred is None:
            continue
        if "itemprop" in referred.attrs:
            yield referred
        else:
            yield from _below(referred)


def _below(node: LexborNode) -> Iterator[LexborNode]:
    """The properties inside the element, but none of items inside it."""
    waiting = _children(node)
    while waiting:
        child = waiting.pop()
        if "itemprop" in child.attrs:
            yield child
        if "itemscope" not in child.attrs:
            waiting.extend(_children(child))


def _children(node: LexborNode) -> list[LexborNode]:
    """Its elements, last first."""
    return [child for child in node.iter() if child.is_element_node][::-1]


def _value(tree: LexborHTMLParser, node: LexborNode, depth: int) -> object:
    if "itemscope" in node.attrs:
        return _item(tree, node, depth + 1)
    if (content := node.attrs.get("content")) is not None:
        return content.strip()
    tag = node.tag or ""
    if tag == "input":  # what a SearchAction asks for
        return {
            "valueRequired": "required" in node.attrs,
            "valueName": node.attrs.get("name") or "",
        }
    if tag in _ADDRESSES:
        return (node.attrs.get(_ADDRESSES[tag]) or "").strip()
    if stated := node.attrs.get(_VALUES.get(tag, "")):
        return stated.strip()
    return " ".join(_text(node).split())


def _text(node: LexborNode) -> str:
    pieces: list[str] = []
    for child in node.traverse(include_text=True):
        parent = child.parent
        if child.tag == "-text" and (parent is None or parent.tag not in _UNSEEN):
            pieces.append(child.text_content or "")
        elif child.tag in {"br", "p", "div", "li"}:
            pieces.append(" ")
    return "".join(pieces)


def _add(item: dict[str, object], name: str, value: object) -> None:
    if name not in item:
        item[name] = value
        return
    known = item[name]
    if isinstance(known, list):
        known.append(value)  # pyright: ignore[reportUnknownMemberType]  a list of whatever came
    else:
        item[name] = [known, value]


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')
