"""XML documents as plain trees: no document type, no entity, nothing fetched, no recursion."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from xml.parsers import expat

from ingestion_pipeline.reading.decode import clean_text, decode
from ingestion_pipeline.work.errors import Permanent, Transient

MAX_DEPTH = 100
MAX_ELEMENTS = 500_000  # 10,000 jobs of 40 elements

# What expat says of a document whose only fault is that it ends.
_CUT_OFF = {
    expat.errors.codes[message]
    for message in (
        expat.errors.XML_ERROR_NO_ELEMENTS,
        expat.errors.XML_ERROR_UNCLOSED_TOKEN,
        expat.errors.XML_ERROR_PARTIAL_CHAR,
        expat.errors.XML_ERROR_UNCLOSED_CDATA_SECTION,
    )
}


@dataclass(slots=True)
class XmlElement:
    """An element with its own text and its children, in their order; names are without prefix."""

    name: str
    text: str = ""
    children: list[XmlElement] = field(default_factory=list["XmlElement"])
    attributes: dict[str, str] = field(default_factory=dict[str, str])

    def each(self, name: str) -> Iterator[XmlElement]:
        """The children of that name."""
        return (child for child in self.children if child.name == name)

    def text_of(self, name: str) -> str | None:
        """The text of the first child of that name that has any."""
        texts = (child.text.strip() for child in self.each(name))
        return next(filter(None, texts), None)


def read_xml(body: bytes, content_type: str | None = None) -> XmlElement:
    """The root element of the document.

    Raises:
        Permanent: `not_xml`, `xml_entity` or `too_deep`; the same body can never be read.
        Transient: `truncated`; half a document is not believed.
    """
    text = decode(body, content_type).lstrip("\ufeff \t\r\n")
    tree = _Tree()
    try:
        tree.parse(text)
    except expat.ExpatError as error:
        if error.code in _CUT_OFF and (not text or tree.root is not None):
            raise Transient(
                f"the XML breaks off after {len(text)} characters; it is fetched again",
                code="truncated",
            ) from error
        begins = clean_text(text[:60])
        raise Permanent(
            f"not XML but text that begins {begins!r} ({error}); check the source's address",
            code="not_xml",
        ) from error
    if tree.root is None:
        raise Permanent("the document has no element", code="not_xml")
    return tree.root


class _Tree:
    """Grows while the parser reports elements."""

    def __init__(self) -> None:
        self.root: XmlElement | None = None
        self._open: list[tuple[XmlElement, list[str]]] = []
        self._count = 0

    def parse(self, text: str) -> None:
        parser = expat.ParserCreate("utf-8")  # whatever the declaration says: it is decoded
        parser.buffer_text = True
        parser.StartDoctypeDeclHandler = self._refuse
        parser.EntityDeclHandler = self._refuse
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._text
        parser.Parse(text.encode("utf-8", "replace"), True)  # noqa: FBT003  expat's own signature

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        self._count += 1
        if len(self._open) >= MAX_DEPTH or self._count > MAX_ELEMENTS:
            raise Permanent(
                f"the document nests more than {MAX_DEPTH} elements or has more than"
                f" {MAX_ELEMENTS}; it is not read",
                code="too_deep",
            )
        element = XmlElement(name.rpartition(":")[2], attributes=attributes)
        if self._open:
            self._open[-1][0].children.append(element)
        else:
            self.root = element
        self._open.append((element, []))

    def _end(self, _name: str) -> None:
        element, pieces = self._open.pop()
        element.text = "".join(pieces)

    def _text(self, text: str) -> None:
        self._open[-1][1].append(text)

    def _refuse(self, *_: object) -> None:
        raise Permanent(
            "the body declares a document type or an entity, which no list of jobs needs and"
            " attacks use; it is not read",
            code="xml_entity",
        )
