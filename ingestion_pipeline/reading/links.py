"""Links as pages write them: relative, with a base of the page's own, or no address at all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from urllib.parse import urldefrag, urljoin


def absolute_link(base: str, link: str | None) -> str | None:
    """The link as a web address.

    None for what a browser would not fetch (scripts, mail, data), and for a place on the same page.
    """
    if not link or link.startswith("#"):
        return None
    try:
        is_whole = link.startswith(("https://", "http://")) and link.isascii() and "[" not in link
        address = link if is_whole else urljoin(base, link)
    except ValueError:
        return None
    return address if address[:8].lower().startswith(("http://", "https://")) else None


def absolute_links(links: Iterable[tuple[str, str]]) -> Mapping[tuple[str, str], str | None]:
    """Each (base, link) with its address, without its fragment unless that tells two apart."""
    whole = {pair: absolute_link(*pair) for pair in links}
    pages = {address: urldefrag(address).url for address in whole.values() if address}
    shared = Counter(pages.values())
    return {
        pair: address and (address if shared[pages[address]] > 1 else pages[address])
        for pair, address in whole.items()
    }
