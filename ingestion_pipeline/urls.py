"""Canonical URLs, registered domains, secrets in URLs, and network addresses that must not be fetched.

Everything here is pure: no name is resolved and no connection is opened.
"""

import re
from functools import cache, lru_cache
from ipaddress import AddressValueError, IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote_to_bytes

if TYPE_CHECKING:
    from tldextract import TLDExtract

MAX_URL_CHARS = 2000  # what every server and index takes; longer ones were always traps

# Names that tell the way to a page and never select the page. `t`, `ref`, `source`, `id` and the like are not
# among them: on some site each of them selects what is shown.
_TRACKING = """
_ga _gl dclid gad_source gbraid gclid gclsrc srsltid wbraid fb_action_ids fb_action_types fb_source fbclid igsh igshid
__hsfp __hssc __hstc _hsenc _hsmi hsctatracking mc_cid mc_eid mkt_tok oly_anon_id oly_enc_id vero_conv vero_id epik
li_fat_id msclkid ttclid twclid yclid ysclid ef_id rb_clickid s_cid s_kwcid wickedid pk_campaign pk_cid pk_content
pk_keyword pk_kwd pk_medium pk_source at_campaign at_medium elqtrack elqtrackid spm
phpsessid jsessionid cfid cftoken oscsid zenid
"""  # the last line are session ids of PHP, Java, ColdFusion and shops
TRACKING_PARAMETERS = frozenset(_TRACKING.split())
TRACKING_PREFIXES = ("utm_", "mtm_", "aspsessionid")
# Names of session ids that also name terms, talks and sections: only what looks random is one.
_SESSION_NAMES = {
    **dict.fromkeys(("sessionid", "session_id", "session-id", "sessid", "sess_id"), 1),
    **dict.fromkeys(("sid", "session", "sess"), 3),
}  # with how often letters and digits must take turns in it
_TURN = re.compile(r"(?<=[a-z])[0-9]|(?<=[0-9])[a-z]", re.IGNORECASE)
_TERM = re.compile(r"\A[a-z_-]*+(?:19|20)[0-9]{2}[a-z_-]*+\Z", re.IGNORECASE)
_LEAST_SESSION_CHARS = 6
_CERTAIN_SESSION = re.compile(r"\A(?=[a-z]*+[0-9])[0-9a-z]{16,}+\Z", re.IGNORECASE)
# In a path: after a semicolon, as Java writes it, or as a folder of its own, as ASP.NET does.
_PATH_SESSION = re.compile(
    r";(?:jsessionid|phpsessid|sessionid|sid)=[^/;]*|/\((?:[A-Z]\([0-9A-Za-z_-]{16,64}\))+\)(?=/)", re.IGNORECASE
)

_DEFAULT_PORTS = {"http": 80, "https": 443}
_C0_AND_SPACE = "".join(map(chr, range(33)))
_URL = re.compile(r"(https?):[/\\]{2}([^/\\?#]*)([^?#]*)(?:\?([^#]*))?(?:#.*)?", re.IGNORECASE | re.DOTALL)
_UNRESERVED = r"A-Za-z0-9\-._~"
_ESCAPE = "%[0-9A-Fa-f]{2}"
_PATH_ODDITY = re.compile(rf"{_ESCAPE}|[^{_UNRESERVED}!$&'()*+,;=:@/]")
_QUERY_ODDITY = re.compile(rf"{_ESCAPE}|[^{_UNRESERVED}!$&()*+,;=:@/?]")  # ' as browsers do
_UNRESERVED_CHAR = re.compile(f"[{_UNRESERVED}]")
# The forbidden domain code points of the URL standard.
_FORBIDDEN_IN_HOST = re.compile(r"[\x00-\x20#/:<>?@\[\\\]^|%\x7f]")
_MESSAGE_CHARS = 500
_SECRET_VALUE = re.compile(
    r"(?i)([?&;#][\w.-]{0,40}(?:auth|bearer|credential|jwt|key|passw(?:or)?d|pwd|secret|sig"
    r"|signature|token)=)[^&#;]*"
)

_SECRETS = """
accesstoken apikey apitoken authtoken bearer clientsecret hapikey idtoken jwt passwd password privatetoken pwd
refreshtoken secret securitytoken sessiontoken subscriptionkey usertoken xamzcredential xamzsecuritytoken
xamzsignature xgoogcredential xgoogsignature
"""
_SECRET_NAMES = frozenset(_SECRETS.split())
# These select a page, too: by a number, or by a short word.
_OFTEN_SECRET_NAMES = frozenset({"auth", "key", "sig", "signature", "token"})
_LEAST_SECRET_CHARS = 8
_LEAST_KEY_CHARS = 16
_MAY_BE_SECRET = re.compile("(?i)token|key|secret|passw|pwd|sig|auth|jwt|bearer|credential")


class BadUrl(ValueError):
    """A URL that cannot be fetched; the message says what is wrong and never holds a password."""


class _Parts(NamedTuple):
    scheme: str
    host: str
    port: int | None
    path: str
    query: str

    @property
    def netloc(self) -> str:
        return self.host if self.port is None else f"{self.host}:{self.port}"


def canonical_url(url: str) -> str:
    """Return the canonical spelling of a URL, the same for every spelling of the same page.

    Fragment, user info, secrets, tracking parameters and session ids are removed; the query is
    sorted by name (values of one name keep their order). It is an identity: a source is fetched by
    `request_url`, which changes nothing that a server could mind; pages that a crawl finds are
    fetched by this spelling.
    """
    parts = _split(url)
    path = _without_dots(_PATH_ODDITY.sub(_normal_escape, _without_session(parts.path)))
    query = _canonical_query(parts.query)
    return f"{parts.scheme}://{parts.netloc}{path}{'?' if query else ''}{query}"


@lru_cache(maxsize=2048)  # each page is asked for several times: for its turn, robots.txt and each hop
def request_url(url: str) -> str:
    """Return the URL to send: only what no request can carry is escaped or dropped."""
    parts = _split(url)
    path = _PATH_ODDITY.sub(_kept_escape, parts.path)
    query = _QUERY_ODDITY.sub(_kept_escape, parts.query)
    return f"{parts.scheme}://{parts.netloc}{path}{'?' if query else ''}{query}"


def host_of(url: str) -> str:
    """Return the canonical host, with the port unless it is the scheme's default."""
    return _split(url).netloc


def domain_label(host: str) -> str:
    """Return the label that its owner registered: `acme` of `shop.acme.co.uk` and of `acme.github.io`.

    Empty for a host without a dot and for an IPv4 address.
    """
    labels = host.removeprefix("www.").split(".")
    if len(labels) == 1 or all(label.isdigit() for label in labels):
        return ""
    parts = _suffix_list()(".".join(labels))
    # A host that is itself a suffix has no owner below it; a top level that is not listed has no suffix.
    label = parts.domain or labels[0] if parts.suffix else labels[-2]
    return label.encode().decode("idna") if label.startswith("xn--") else label


@cache
def _suffix_list() -> "TLDExtract":
    """Return the list of public suffixes that the library brings along: nothing is fetched or written."""
    from tldextract import TLDExtract  # it imports requests: a tenth of a second

    return TLDExtract(cache_dir=None, suffix_list_urls=(), include_psl_private_domains=True)


def has_credentials(url: str) -> bool:
    """Return whether the URL carries a user name or password; malformed URLs included."""
    return _credentials_end(url) > 0


def secret_parameter(url: str) -> str | None:
    """Return the name of a parameter of the URL that holds a secret, or None."""
    pairs = re.split("[?&;#]", url)[1:]
    secret = next((pair for pair in pairs if _is_secret(pair, least_chars=1)), None)
    return None if secret is None else secret.partition("=")[0]


def without_secrets(url: str) -> str:
    """Return the URL as it may be stored: without user info and parameters that hold a secret."""
    if "=" not in url and "@" not in url:
        return url
    address, hash_sign, fragment = _without_user_info(url).partition("#")
    page, _, query = address.partition("?")
    pairs = without_secret_pairs(query)
    safe = f"{page}?{pairs}" if pairs else (page if query else address)
    return f"{safe}#{pairs}" if (pairs := without_secret_pairs(fragment)) and hash_sign else safe


def without_secret_pairs(query: str) -> str:
    """Return the query without the parameters that hold a secret."""
    if not _MAY_BE_SECRET.search(query):
        return query
    return "&".join(pair for pair in query.split("&") if not _is_secret(pair))


def _is_secret(pair: str, *, least_chars: int = _LEAST_SECRET_CHARS) -> bool:
    name, _, value = pair.partition("=")
    plain_name = name.lower().replace("_", "").replace("-", "")
    if plain_name in _SECRET_NAMES:
        return bool(value)
    if plain_name not in _OFTEN_SECRET_NAMES or value.isdigit():
        return False
    return len(value) >= (_LEAST_KEY_CHARS if plain_name == "key" else least_chars)


def without_credentials(url: str) -> str:
    """Return the URL for messages and logs: no user info, no secrets, at most 500 characters."""
    safe = _without_user_info(url)
    return (_SECRET_VALUE.sub(r"\1...", safe) if "=" in safe else safe)[:_MESSAGE_CHARS]


def _without_user_info(url: str) -> str:
    end = _credentials_end(url)
    scheme = re.match(r"\s*[A-Za-z][A-Za-z0-9+.\-]*:[/\\]*", url[:end]) if end else None
    return (scheme[0] if scheme else "") + url[end:]


def checked_url(url: str) -> str:
    """Return `url` if it can be a source's address; else raise `BadUrl` with problem and cure."""
    safe = without_credentials(url)
    if len(url) > MAX_URL_CHARS:
        raise BadUrl(f"URL {safe!r} has {len(url)} characters; shorten it to {MAX_URL_CHARS} or fewer")
    if " " in url or not url.isprintable():  # of all blanks only this one is printable
        raise BadUrl(f"URL {safe!r} holds a space or control character; remove it or write it as %20")
    _split(url)
    if has_credentials(url):
        raise BadUrl(f"URL {safe!r} was given with a user name or password; remove the part before the @")
    if (escaped := len(canonical_url(url))) > MAX_URL_CHARS:
        raise BadUrl(f"URL {safe!r} has {escaped} characters once escaped; shorten it to {MAX_URL_CHARS}")
    return url


@lru_cache(maxsize=2048)  # a run holds 500 pages, and asks often for the host of each
def _split(url: str) -> _Parts:
    text = url.strip(_C0_AND_SPACE)
    for invisible in "\t\n\r":
        text = text.replace(invisible, "")
    match = _URL.fullmatch(text)
    if match is None:
        raise BadUrl(f"{without_credentials(text)!r} is no web address; it must begin with http:// or https://")
    scheme, authority, path, query = match[1].lower(), match[2], match[3], match[4] or ""
    try:
        host, port = _host_and_port(authority.rpartition("@")[2], scheme)
    except BadUrl as error:
        raise BadUrl(f"URL {without_credentials(text)!r} has {error}") from None
    return _Parts(scheme, host, port, path.replace("\\", "/") or "/", query)


@lru_cache(maxsize=4096)  # the links of a page, and the pages of a crawl, share a few hosts
def _host_and_port(netloc: str, scheme: str) -> tuple[str, int | None]:
    """Return canonical host and port; `BadUrl` states the problem as the end of a sentence."""
    match = re.fullmatch(r"(\[[^\]]*\]|[^:]*)(?::([0-9]*))?", netloc, re.DOTALL)
    if match is None:
        raise BadUrl("a malformed host or port; write host or host:number")
    digits = (match[2] or "").lstrip("0")[:6] or "0"  # a number of any length is no port
    port = int(digits) if match[2] else _DEFAULT_PORTS[scheme]
    if port > 65535:  # noqa: PLR2004 - the largest TCP port
        raise BadUrl("a port above 65535; correct the port")
    return _canonical_host(match[1]), None if port == _DEFAULT_PORTS[scheme] else port


def _canonical_host(host: str) -> str:
    if host.startswith("["):
        try:
            return f"[{IPv6Address(host[1:-1]).compressed}]"
        except AddressValueError as error:
            raise BadUrl(f"a malformed IPv6 address: {error}") from None
    name = host if host.isascii() and "%" not in host else _ascii_host(host)
    if not name or _FORBIDDEN_IN_HOST.search(name) or name.startswith("["):
        raise BadUrl("no usable host; write it as http://host/ or https://host/")
    return _dotted(name.lower())


def _dotted(name: str) -> str:
    """Return IPv4 if the last label is a number: `0x7f.1`, `0177.0.0.1`, `2130706433` are IPv4."""
    labels = name.removesuffix(".").split(".")
    if not re.fullmatch("[0-9]+|0x[0-9a-f]*", labels[-1]):
        return name
    try:
        *first, last = [_ipv4_number(label) for label in labels]
        # The last number fills all the bytes that are left; the others are one byte each.
        return str(IPv4Address(bytes(first) + last.to_bytes(4 - len(first), "big")))
    except (ValueError, OverflowError):
        raise BadUrl("a malformed IPv4 address; write a.b.c.d") from None


def _ipv4_number(label: str) -> int:
    if label.startswith("0x"):
        return int(label[2:] or "0", 16)
    return int(label, 8 if label.startswith("0") else 10)


def _ascii_host(host: str) -> str:
    import idna  # its tables are large, and most hosts are ASCII

    try:
        decoded = unquote_to_bytes(host).decode("utf-8")
        mapped = idna.uts46_remap(decoded, std3_rules=False, transitional=False)
        return ".".join(_ascii_label(label) for label in mapped.split("."))
    except (UnicodeError, idna.IDNAError) as error:
        reason = type(error).__name__
        raise BadUrl(f"a host that is no international name ({reason})") from None


def _ascii_label(label: str) -> str:
    # Not idna.encode: it refuses labels that resolve and that browsers open, such as emoji.
    return label if label.isascii() else "xn--" + label.encode("punycode").decode("ascii")


def _normal_escape(match: re.Match[str]) -> str:
    text = match[0]
    if len(text) == 1:
        return _escaped(text)
    char = chr(int(text[1:], 16))
    return char if _UNRESERVED_CHAR.match(char) else text.upper()


def _kept_escape(match: re.Match[str]) -> str:
    return match[0] if len(match[0]) > 1 else _escaped(match[0])


def _escaped(char: str) -> str:
    return "".join(f"%{byte:02X}" for byte in char.encode("utf-8", "replace"))


def _without_dots(path: str) -> str:
    if "/." not in path:
        return path
    resolved: list[str] = []
    segments = path.split("/")[1:]
    for segment in segments:
        if segment == "..":
            del resolved[-1:]
        elif segment != ".":
            resolved.append(segment)
    if segments[-1] in {".", ".."}:
        resolved.append("")
    return "/" + "/".join(resolved)


def _canonical_query(query: str) -> str:
    if not query:
        return ""
    pairs = without_secret_pairs(_QUERY_ODDITY.sub(_normal_escape, query)).split("&")
    selecting = [pair for pair in pairs if pair and not selects_nothing(pair)]
    return "&".join(sorted(selecting, key=lambda pair: pair.partition("=")[0]))


def is_tracking(name: str) -> bool:
    """Return whether a parameter of this name, in lower case, never selects a page."""
    return name in TRACKING_PARAMETERS or name.startswith(TRACKING_PREFIXES)


def selects_nothing(pair: str) -> bool:
    """Return whether a `name=value` tracks the visitor and never selects a page."""
    name, _, value = pair.partition("=")
    name = name.lower()
    return is_tracking(name) or (name in _SESSION_NAMES and _is_session_id(name, value))


def _is_session_id(name: str, value: str) -> bool:
    if len(value) < _LEAST_SESSION_CHARS or _TERM.match(value):
        return False
    is_certain = _CERTAIN_SESSION.match(value) is not None
    return is_certain or len(_TURN.findall(value)) >= _SESSION_NAMES[name]


def without_session_ids(url: str) -> str:
    """Return the address as it is written, without session ids and tracking parameters."""
    address, mark, query = url.partition("?")
    query, hash_mark, fragment = query.partition("#")
    selecting = "&".join(pair for pair in query.split("&") if pair and not selects_nothing(pair))
    return f"{_without_session(address)}{mark if selecting else ''}{selecting}{hash_mark}{fragment}"


def _without_session(path: str) -> str:
    return _PATH_SESSION.sub("", path) if ";" in path or "(" in path else path


def _credentials_end(url: str) -> int:
    """Return the position where user info ends (0: there is none).

    A password with an unescaped slash leaves `http://user:pa` as host and a port that is no number:
    then everything up to the last @ is taken for credentials.
    """
    if "@" not in url:
        return 0
    match = re.match(r"\s*(?:[A-Za-z][A-Za-z0-9+.\-]*:)?[/\\]*([^/\\?#]*)", url)
    if match is None:
        return 0
    if "@" in match[1]:
        return match.start(1) + match[1].rindex("@") + 1
    is_port = re.fullmatch(r"(\[[^\]]*\]|[^:]*)(:[0-9]*)?", match[1])
    return 0 if is_port else url.rfind("@") + 1


# Own list: Python's is_private and is_global miss 100.64/10, 192.0.0.0/24, 2002::/16 and fec0::/10
# or call NAT64 and ::a.b.c.d global (hardening table, measured on 3.11). 168.63.129.16 looks public
# and is Azure's own host service.
_REFUSED = """
0.0.0.0/8 10.0.0.0/8 100.64.0.0/10 127.0.0.0/8 168.63.129.16/32 169.254.0.0/16 172.16.0.0/12 192.0.0.0/24
192.0.2.0/24 192.88.99.0/24 192.168.0.0/16 198.18.0.0/15 198.51.100.0/24 203.0.113.0/24 224.0.0.0/4 240.0.0.0/4
"""
_REFUSED_V4 = tuple(map(IPv4Network, _REFUSED.split()))
# In IPv6 only global unicast is the web; that alone refuses ::1, ::a.b.c.d, fc00::/7, fe80::/10,
# fec0::/10, ff00::/8 and 64:ff9b:1::/48.
_GLOBAL_V6 = IPv6Network("2000::/3")
# Protocol assignments with Teredo, documentation (two), 6to4, which embeds IPv4 and is dead.
_REFUSED_V6 = tuple(IPv6Network(part) for part in ("2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20"))
_NAT64 = IPv6Network("64:ff9b::/96")


def is_refused_address(ip: str) -> bool:
    """Return whether `ip` is anything but a public unicast address, or no address at all."""
    try:
        address = ip_address(ip)
    except ValueError:
        return True
    if isinstance(address, IPv6Address):
        embedded = address.ipv4_mapped
        if embedded is None and address in _NAT64:
            embedded = IPv4Address(int(address) & 0xFFFFFFFF)
        if embedded is None:
            return address not in _GLOBAL_V6 or any(address in net for net in _REFUSED_V6)
        address = embedded
    return any(address in network for network in _REFUSED_V4)
