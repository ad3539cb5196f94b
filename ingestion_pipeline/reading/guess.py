"""The encoding of a body that declares none and is not UTF-8, by how its bytes are spread.

Only scripts whose bytes cannot be mistaken for western letters: those come in ones between ASCII,
the letters of these scripts in runs.
"""

from __future__ import annotations

import re

_LOOKED_AT = 200_000  # bytes
_FEWEST = 12  # bytes beyond ASCII; fewer prove nothing
_SHORTEST_RUN = 3.0  # bytes on average; western text has 1.1

_RUNS = re.compile(rb"[\x80-\xff]+")
_SHIFT_JIS_KANA = re.compile(rb"\x82[\x9f-\xf1]|\x83[\x40-\x96]")
_PAIRS = re.compile(rb"([\xa1-\xfe])[\xa1-\xfe]")
_BIG5 = re.compile(rb"[\xa4-\xc6][\x40-\x7e\xa1-\xfe]")


def guessed_encoding(body: bytes) -> str | None:
    """The codec that the bytes speak for clearly; None where they do not."""
    head = body[:_LOOKED_AT]
    runs = _RUNS.findall(head)
    high = b"".join(runs)
    if len(high) < _FEWEST:
        return None
    # Every kana is a lead byte that western text hardly has, whatever its second byte is.
    if 2 * len(_SHIFT_JIS_KANA.findall(head)) > len(high) // 3:
        return "cp932"
    is_western = len(high) < _SHORTEST_RUN * len(runs)
    return None if is_western else _cyrillic(high) or _of_pairs(runs, high) or _big5(head, high)


def _share(data: bytes, low: int, top: int) -> float:
    return len(data.translate(None, bytes({*range(256)} - {*range(low, top + 1)}))) / len(data)


def _cyrillic(high: bytes) -> str | None:
    """Running text is nine parts lower case; the two alphabets have theirs in different halves."""
    if _share(high, 0xC0, 0xFF) < 0.9:  # noqa: PLR2004 - letters, and a few signs
        return None
    lower_1251 = _share(high, 0xE0, 0xFF)
    if lower_1251 > 0.7:  # noqa: PLR2004
        return "cp1251"
    return "koi8-r" if lower_1251 < 0.3 else None  # noqa: PLR2004


def _of_pairs(runs: list[bytes], high: bytes) -> str | None:
    """EUC-JP, EUC-KR or GB 2312: runs of even length, told apart by their first bytes."""
    leads = b"".join(lead for run in runs for lead in _PAIRS.findall(run))
    if 2 * len(leads) < 0.95 * len(high):
        return None
    if _share(leads, 0xA4, 0xA5) > 0.2:  # noqa: PLR2004 - kana
        return "euc_jp"
    if _share(leads, 0xB0, 0xC8) > 0.9:  # noqa: PLR2004 - all Hangul, and no Hanja
        return "cp949"
    return "gb18030" if _share(leads, 0xB0, 0xD7) > 0.7 else None  # noqa: PLR2004 - common Hanzi


def _big5(head: bytes, high: bytes) -> str | None:
    """Common characters begin with A4 to C6; their second byte may be ASCII."""
    common = sum(1 + (pair[1] > 0x7F) for pair in _BIG5.findall(head))  # noqa: PLR2004 - ASCII's end
    return "big5hkscs" if common > 0.8 * len(high) else None
