"""Text for terminals: characters that one would execute or that reorder text are escaped; counts with their noun."""

import json
import re

# Commands of terminals (C0 and C1 controls; a newline and a tab are harmless), marks that set the
# direction of text or hide in it, line ends that only some programs know, and tags. The joiners
# U+200C and U+200D stay: scripts and emoji are written with them.
_CONTROLS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e"
    "\u2060-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"
)


def harmless(text: str) -> str:
    """Return the text with a replacement character for all that a terminal would execute."""
    return text if text.isprintable() else _CONTROLS.sub("\N{REPLACEMENT CHARACTER}", text)


def harmless_json(text: str) -> str:
    """Return the JSON document with such characters as escapes: it means the same."""
    is_plain = text.isascii() and "\x7f" not in text  # JSON escapes the other controls of ASCII
    return text if is_plain else _CONTROLS.sub(_escaped, text)


def _escaped(match: re.Match[str]) -> str:
    return json.dumps(match[0])[1:-1]


def counted(count: int, noun: str) -> str:
    """Format a count with its noun: `1 page`, `2 pages`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
