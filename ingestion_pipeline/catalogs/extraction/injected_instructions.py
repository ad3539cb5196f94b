"""Detect text on a page that is addressed to a language model and not to visitors.

Not every such phrase can be listed. Lines with a listed phrase are hidden from the model and are no
evidence; a record that contains one is flagged for review.
"""

import re

from ingestion_pipeline.reading.text.fingerprint import QuickCheck

# Several languages; the gap between the halves of a phrase is bounded, so that no line is slow.
INJECTED_INSTRUCTIONS = re.compile(
    r"\b(?:ignore|disregard|forget|override|bypass)\b.{0,40}\b(?:instructions?|prompts?|directions)\b"
    r"|\b(?:ignore|disregard|forget)\s++(?:all|any|everything|the)?\s*+(?:previous|prior|above|earlier)\b"
    r"|\byou are (?:now )?(?:an? |the )?(?:ai|artificial intelligence|language model|llm|chatbot)\b"
    r"|\b(?:attention|note to|dear|hey|instructions? (?:for|to)) (?:all )?"
    r"(?:ai|llm|language model)s?\b"
    r"|(?:^|[.!?]\s)(?:ai|llm|language) (?:models?|assistants?|agents?|crawlers?)\s*:"
    r"|\bnew (?:system )?(?:instructions?|prompt)\s*:"
    r"|\bsystem\s*:\s*(?:you|return|answer|output|ignore|respond)\b"
    r"|\b(?:return|respond|answer|output|reply)\b.{0,40}"
    r"(?:name|title|_id|description|credits)\s?:?="
    r"|<\|[\w ./-]{1,40}\|>|\[/?INST\]"
    r"|\bignorier(?:e|en sie)\b.{0,40}\b(?:anweisung|vorgabe|instruktion)\w*"
    r"|\bignor(?:ez|a|e|ar)\b.{0,40}\b(?:instruc\w+)"
    r"|\u0438\u0433\u043d\u043e\u0440\u0438\u0440\w*.{0,40}\u0438\u043d\u0441\u0442\u0440\u0443\u043a"
    r"|(?:\u6307\u793a|\u547d\u4ee4).{0,10}\u7121\u8996|\u5ffd\u7565.{0,20}(?:\u6307\u4ee4|\u6307\u793a|\u63d0\u793a)",
    re.IGNORECASE,
)
# A superset of these phrases, fast to search: hardly any line matches.
_QUICK_CHECK = QuickCheck(
    r"(?:ignor|disregard|forget|override|bypass)[^\n]*"
    r"(?:instru|prompt|direction|previous|prior|above|earlier|anweisung|vorgabe)"
    r"|you are (?:now )?(?:an? |the )?(?:ai|artificial intelligence|language model|llm|chatbot)"
    r"|(?:attention|note to|dear|hey|instructions? (?:for|to)) (?:all )?(?:ai|llm|language model)"
    r"|(?:ai|llm|language) (?:model|assistant|agent|crawler)s?[^a-z0-9\n]*:"
    r"|new (?:system )?(?:instructions?|prompt)[^a-z0-9\n]*:"
    r"|system[^a-z0-9\n]*:[^a-z0-9\n]*(?:you|return|answer|output|ignore|respond)"
    r"|(?:return|respond|answer|output|reply)[^\n]*"
    r"(?:name|title|_id|description|credits)[^a-z0-9\n]?:?="
    r"|<\|[^\n]*\|>|\[/?inst\]"
    r"|\x{0438}\x{0433}\x{043d}\x{043e}\x{0440}\x{0438}\x{0440}[^\n]*"
    r"\x{0438}\x{043d}\x{0441}\x{0442}\x{0440}\x{0443}\x{043a}"
    r"|(?:\x{6307}\x{793a}|\x{547d}\x{4ee4})[^\n]*\x{7121}\x{8996}"
    r"|\x{5ffd}\x{7565}[^\n]*(?:\x{6307}\x{4ee4}|\x{6307}\x{793a}|\x{63d0}\x{793a})"
)


def has_injected_instructions(text: str) -> bool:
    """Return whether the text contains instructions for a machine."""
    return _is_injected(" ".join(text.split()))


def blank_injected_instructions(text: str) -> tuple[str, int]:
    """Return the text with such lines replaced by blanks, and how many those are.

    Every other character keeps its position, so that spans are valid in both texts.
    """
    if not _QUICK_CHECK.sees(text):
        return text, 0
    lines = text.split("\n")
    matches = [number for number, line in enumerate(lines) if _is_injected(line)]
    for number in matches:
        lines[number] = " " * len(lines[number])
    return "\n".join(lines), len(matches)


def _is_injected(line: str) -> bool:
    return _QUICK_CHECK.sees(line) and INJECTED_INSTRUCTIONS.search(line) is not None
