"""What a site says about the use of its text by machines: read, stored with each snapshot, and honoured.

Four ways to say it are read: `X-Robots-Tag` and `<meta name="robots">` (noai, noml), TDMRep (a header, meta elements
and /.well-known/tdmrep.json), and `Content-Signal` (in robots.txt). The rule is one for all: text whose use is reserved
is neither sent to a model nor exported; text whose use as the input of a model is refused is not sent to one.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

from ingestion_pipeline.pages.politeness.robots import RobotsRule
from ingestion_pipeline.urls import without_credentials

Rights = Mapping[str, str]  # what is said, by where
TDMREP_PATH = "/.well-known/tdmrep.json"
MAX_TDMREP_BYTES = 100_000
MAX_LOCATIONS = 1_000

ROBOTS_TAG, META, RESERVATION, POLICY, SIGNAL = (
    *("x-robots-tag", "meta-robots", "tdm-reservation", "tdm-policy", "content-signal"),
)
_HEADERS = (ROBOTS_TAG, RESERVATION, POLICY, SIGNAL)
_HEAD_BYTES = 65_536  # meta elements stand in the head
_MAX_VALUE = 300
_HINTS = (b"noai", b"noml", b"tdm-")  # looked for in lower case: a pattern takes seven times as long, 0.5 ms a page
_META = re.compile(r"<meta\b([^>]{1,1000})>", re.IGNORECASE)
_ATTRIBUTE = re.compile(r"""\b(name|content)\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s"'>]+))""", re.IGNORECASE)
_NO_AI = re.compile(r"(?:^|[\s,:])no(?:ai|ml)(?=$|[\s,])", re.IGNORECASE)
_NO_INPUT = re.compile(r"\bai-input\s*=\s*no\b", re.IGNORECASE)


def header_rights(headers: Mapping[str, str]) -> dict[str, str]:
    """Return what the headers of a response say, their names in lower case."""
    stated = {name: headers[name].strip()[:_MAX_VALUE] for name in _HEADERS if headers.get(name)}
    if ROBOTS_TAG in stated and not _NO_AI.search(stated[ROBOTS_TAG]):
        del stated[ROBOTS_TAG]
    return stated


def meta_rights(body: bytes) -> dict[str, str]:
    """Return what the meta elements of a page say."""
    head = body[:_HEAD_BYTES]
    lowered = head.lower()
    if not any(hint in lowered for hint in _HINTS):
        return {}
    stated: dict[str, str] = {}
    for match in _META.finditer(head.decode("utf-8", "replace")):
        attributes = {name.lower(): "".join(values) for name, *values in _ATTRIBUTE.findall(match[1])}
        name, content = attributes.get("name", "").strip().lower(), attributes.get("content", "").strip()[:_MAX_VALUE]
        if name in {RESERVATION, POLICY}:
            stated[name] = content
        elif name == "robots" and _NO_AI.search(content):
            stated[META] = content
    return stated


def tdm_rules(body: bytes) -> list[tuple[str, str, str]]:
    """Return location, reservation and policy of each entry of a tdmrep.json; none of one that is malformed."""
    try:
        parsed: object = json.loads(body)
    except (ValueError, RecursionError):
        return []
    entries = cast("list[object]", parsed) if isinstance(parsed, list) else []
    rules: list[tuple[str, str, str]] = []
    for entry in entries[:MAX_LOCATIONS]:
        fields = cast("dict[str, Any]", entry) if isinstance(entry, dict) else {}
        location, reservation = fields.get("location"), fields.get(RESERVATION)
        if isinstance(location, str) and str(reservation) in {"0", "1"} and "\0" not in location:
            policy = without_credentials(str(fields.get(POLICY) or "").replace("\0", ""))
            rules.append((location[:_MAX_VALUE], str(reservation), policy[:_MAX_VALUE]))
    return rules


def site_rights(path: str, *, signal: str | None, tdm: Sequence[Sequence[str]]) -> dict[str, str]:
    """Return what the site's files say of a path: the first location that matches decides."""
    stated = {} if signal is None else {SIGNAL: signal[:_MAX_VALUE]}
    for location, reservation, policy in tdm:
        if RobotsRule.of(location, is_allowed=True).matches(path):
            return stated | {RESERVATION: reservation} | ({POLICY: policy} if policy else {})
    return stated


def is_reserved(rights: Rights | None) -> bool:
    """Return whether the text may be neither sent to a model nor exported."""
    stated = rights or {}
    return stated.get(RESERVATION, "").strip() == "1" or ROBOTS_TAG in stated or META in stated


def allows_models(rights: Rights | None) -> bool:
    """Return whether the text may be sent to a model."""
    return not is_reserved(rights) and not _NO_INPUT.search((rights or {}).get(SIGNAL, ""))
