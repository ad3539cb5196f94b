"""The names by which a business may be mentioned, each as a pattern over folded text.

Folding removes case, width, ligatures and the marks of Latin and Greek letters, since answers often
omit them; signs and blanks stay, since they separate words. Marks of other scripts stay, too: without
them が would be か.
"""

import re
import unicodedata
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from ingestion_pipeline.reading.structured.organizations import bare_name
from ingestion_pipeline.urls import BadUrl, domain_label, host_of

# ruff: noqa: RUF001 - the letters of other scripts are meant


# Letters that Unicode does not decompose, and what people write instead.
_PLAIN = {
    "ß": "ss",
    "ẞ": "ss",
    "æ": "ae",
    "œ": "oe",
    "þ": "th",
    "ø": "o",
    "ł": "l",
    "đ": "d",
    "ð": "d",
    "ħ": "h",
    "ı": "i",
    "ё": "е",
    **dict.fromkeys("’‘ʼ`´", "'"),
    **dict.fromkeys("‐‑‒–—−", "-"),
}
_UMLAUTS = {"ä": "ae", "ö": "oe", "ü": "ue"}


@dataclass(frozen=True, slots=True)
class Folded:
    """Folded text with the original offset of each character."""

    text: str
    offsets: "array[int]"  # not subscriptable at run time before Python 3.12
    source: str

    def span(self, start: int, end: int) -> tuple[int, int]:
        """Return the original span of the folded characters from `start` to `end`."""
        return self.offsets[start], self.offsets[end - 1] + 1

    def written(self, start: int, end: int) -> str:
        """Return those characters as they were written."""
        return self.source[slice(*self.span(start, end))]


def fold(text: str) -> Folded:
    """Fold a text."""
    if text.isascii():
        return Folded(text.lower().replace("`", "'"), array("I", range(len(text))), text)
    parts: list[str] = []
    offsets: array[int] = array("I")
    for offset, character in enumerate(text):
        folded = folded_character(character)
        parts.append(folded)
        offsets.extend([offset] * len(folded))
    return Folded("".join(parts), offsets, text)


def folded_name(name: str) -> str:
    """Fold a name."""
    return "".join(map(folded_character, name))


def spelt_out(name: str) -> str:
    """Return the name as German writes it without umlauts: Mueller for Müller."""
    composed = unicodedata.normalize("NFC", name)
    return "".join(_UMLAUTS.get(character.lower(), character) for character in composed)


@lru_cache(maxsize=10_000)
def folded_character(character: str) -> str:
    """Return the folded form of a character; empty for an invisible one."""
    if character.isascii() and character != "`":
        return character.lower()
    if (plain := _PLAIN.get(character.lower())) is not None:
        return plain
    if character.isspace():
        return " "
    if _is_ignored(character):
        return ""
    return "".join(map(_plain_letter, unicodedata.normalize("NFKC", character).casefold()))


def _is_ignored(character: str) -> bool:
    """Return whether it is invisible, a mark of the letter before it, or a footnote number."""
    return (
        unicodedata.category(character) in {"Cf", "Cs"}
        or "\ufe00" <= character <= "\ufe0f"
        or "\u0300" <= character <= "\u036f"
        or unicodedata.decomposition(character).startswith("<super>")
    )


def _plain_letter(letter: str) -> str:
    parts = unicodedata.normalize("NFD", letter)
    name = unicodedata.name(parts[:1] or " ", "")
    is_marked = len(parts) > 1 and name.startswith(("LATIN", "GREEK"))
    return parts[0] if is_marked else _PLAIN.get(letter, letter)


# ruff: noqa: RUF001 - the letters of other scripts are meant


OPEN_SCRIPTS = frozenset({"han", "hiragana", "thai", "lao", "khmer", "myanmar"})
_BLOCKS = (
    ("han", 0x3400, 0x9FFF),
    ("han", 0x3005, 0x3007),
    ("han", 0xF900, 0xFAFF),
    ("han", 0x20000, 0x3FFFF),
    ("hiragana", 0x3040, 0x309F),
    ("katakana", 0x30A0, 0x30FF),
    ("katakana", 0x31F0, 0x31FF),
    ("hangul", 0x1100, 0x11FF),
    ("hangul", 0x3130, 0x318F),
    ("hangul", 0xAC00, 0xD7AF),
    ("thai", 0x0E00, 0x0E7F),
    ("lao", 0x0E80, 0x0EFF),
    ("myanmar", 0x1000, 0x109F),
    ("khmer", 0x1780, 0x17FF),
    ("cyrillic", 0x0400, 0x052F),
    ("greek", 0x0370, 0x03FF),
    ("hebrew", 0x0590, 0x05FF),
    ("arabic", 0x0600, 0x06FF),
    ("arabic", 0x0750, 0x077F),
)
_MIDDLE_DOTS = "\u30fb\u30a0"  # in the katakana block, but between words
# Korean particles at the end of a name, the longer ones first.
_KOREAN = (
    "에서는 으로는 이라는 입니다 에서 에게 으로 보다 처럼 까지 부터 이나 이며 이고 라는 하고 에는"
    " 과의 와의 은 는 이 가 을 를 의 에 와 과 도 로 만"
)
_SUFFIXES_AFTER_CONSONANT = {
    "cyrillic": "а у ом е ы и ов ам ами ах ем ой ою ю я",
    "pl": "u a owi em iem ie ów om ami ach y",
    "cs": "u a ovi em e ů ům ech y",
    "fi": "in ia iin issa ista illa ille ilta iksi ina",
    "hu": "nak nek ban ben ról ről hoz hez nál nél val vel t ot et",
    "de": "s es",
    "sv": "s",
    "da": "s",
    "no": "s",
    "nl": "s",
    "et": "i is ist ile il ilt",
}
_SUFFIXES_AFTER_VOWEL = {
    "fi": "n a an en on ssa sta lla lle lta ksi na ssä stä llä lle ltä nä ä",
    "hu": "nak nek ban ben ról ről hoz hez nál nél val vel t",
    "et": "s st le l lt",
    "de": "s",
    "sv": "s",
    "da": "s",
    "no": "s",
    "nl": "s",
}
# Nominative endings that are replaced: (ending, its replacements).
_CHANGED = {
    "cyrillic": (
        ("ия", "ии ию ией"),
        ("а", "ы и е у ой ою"),
        ("я", "и е ю ей ею"),
        ("ь", "я ю ем е и ью"),
        ("й", "я ю ем е"),
    ),
    "pl": (
        ("ka", "ki ce kę ką ko"),
        ("ga", "gi dze gę gą"),
        ("ra", "ry rze rę rą"),
        ("a", "y i ie ę ą o"),
        ("st", "stu stem ście"),
    ),
    "cs": (("a", "y ě e u ou o"),),
}
_LEAST_STEM = 3


@lru_cache(maxsize=10_000)
def script_of(character: str) -> str:
    """Return the script of a letter; digits have their own, other characters none."""
    code = ord(character)
    if character.isascii():
        return "latin" if character.isalpha() else "digit" if character.isdigit() else ""
    if character in _MIDDLE_DOTS:
        return ""
    for name, first, last in _BLOCKS:
        if first <= code <= last:
            return name if unicodedata.category(character)[0] in "LMN" else ""
    category = unicodedata.category(character)[0]
    if category in "LM":
        return "latin" if unicodedata.name(character, "").startswith("LATIN") else "other"
    return "digit" if category == "N" else ""


def is_word_boundary(before: str, after: str) -> bool:
    """Return whether a word may end between the two characters; either may be missing."""
    left, right = (script_of(character) if character else "" for character in (before, after))
    if not left or not right:
        return True
    if unicodedata.category(after)[0] == "M":
        return False
    if OPEN_SCRIPTS & {left, right}:
        return True
    if "digit" in {left, right}:
        return False
    return left != right


@lru_cache(maxsize=1_000)
def inflected(word: str, language: str | None) -> tuple[str, ...]:
    """Return the folded word with the suffixes that its script or the text's language adds."""
    script = script_of(word[-1:] or " ")
    primary = (language or "").partition("-")[0].lower()
    group = "cyrillic" if script == "cyrillic" else primary if script == "latin" else ""
    forms = [*_regular(word, group), *_changed(word, group)] if group else []
    return tuple(dict.fromkeys(folded for form in forms if (folded := folded_name(form)) != word))


def glued(word: str) -> tuple[str, str]:
    """Return patterns of what may be attached to the word, before and after it."""
    script = script_of(word[-1:] or " ")
    if script == "hangul":
        return "", "(?:" + "|".join(_KOREAN.split()) + ")?"
    if script == "arabic" and len(word) >= _LEAST_STEM:
        return "(?:[وف]?[بلك]?(?:ال)?)", ""
    if script == "hebrew" and len(word) >= _LEAST_STEM:
        return "[והבלמשכ]{0,2}", ""
    return "", ""


def _regular(word: str, group: str) -> list[str]:
    if len(word) <= _LEAST_STEM:
        return []
    is_vowel = word[-1] in "aeiouyаеиоуыэюя"
    table = _SUFFIXES_AFTER_VOWEL if is_vowel else _SUFFIXES_AFTER_CONSONANT
    if word[-1] in "ьй" or (is_vowel and group not in _SUFFIXES_AFTER_VOWEL):
        return []
    return [word + suffix for suffix in table.get(group, "").split()]


def _changed(word: str, group: str) -> list[str]:
    for end, others in _CHANGED.get(group, ()):
        if word.endswith(end) and len(word) - len(end) >= _LEAST_STEM - 1:
            stem = word.removesuffix(end)
            return [stem + other for other in others.split()]
    return []


_ENGLISH = """
about above access account active adapt address advance agile air alpha amazon amber anchor answer apple arc arch
arrow art aspect asset atlas atom aura avenue axis balance bamboo bank base basic basket bay beacon beam bear bee bell
bench best beta better beyond bit black blank blaze blend block bloom blue board boat bold bolt bond book boost border
box brain branch brand brave bread breeze brick bridge bright brook brush bubble buffer bug build bumble bunch butter
button cable cactus calm camp canvas canyon capital carbon card care cargo case cash cast castle catalyst cedar cell
center central chain change chapter charm charge chase check chef chip choice circle citizen city class clay clear
clever click climb clock close cloud club coach coast coda code coffee coil coin collective column comet common
compass complete concept condor connect constant contact copper copy coral core corner cosmos cotton course cover
craft crane crate cream create credit crest crew cross crown crystal cube current curve cycle dash data dawn day deal
deep deer delta depot desk dialog diamond digital direct discover dish dock domain door dot double dove draft dragon
draw dream drift drive drop dune dynamic eagle earth east easy echo edge element elite ember empire energy engine
envoy epic equal essential ether evergreen every evolve exact express eye fabric face factor fair falcon family farm
fast feather fidelity field file filter find fire first fish fit flag flame flash flat fleet flex flight float floor
flow flower fluent fly focus fold forest forge form forward found foundation fountain fox frame free fresh friend
front frontier fuel full fun fuse fusion future galaxy gap garden gate gather gem general genius gift giant glass
glean globe glow go goal gold good grace grain grand granite graph grass gravity great green grid grip ground group
grove grow guide guru harbor harvest haven hawk head health heart heat hero hive hobby hold home honey hope horizon
house hub human hunter ice icon idea ideal image impact index indigo infinity ink inside insight instant iron island
ivy jade jet join joy juice jump jungle just keen keep key kind king kite kit lab lake lamp land lane lark laser latch
launch laurel lead leaf league lean learn ledger legacy lemon level lever light like lily lime line linear link lion
list live local lock loft logic loop lotus loud loyal lucky luna lunar magic magnet mail main make mango maple march
mark market master match matter maven meadow measure medal medium mega mercury merit mesh meta meteor metro mint
mirror mission mist mobile mode modern moment momentum monday moon more morning motion motive motor mountain move must
mustang native nature navy near nest net network new next nimble noble node noon north nova note notion now number oak
oasis ocean octave olive omega omni one only open optimum oracle orange orbit orchard orchid order origin other
outlook outside owl own oxygen pace pacific pack page paint palm panda paper paradise parallel parcel park part
partner passage patch path patriot pattern pause peak pear pearl pebble pen people pepper perfect phoenix photon pier
pilot pine pink pioneer pivot pixel place plain plan planet plant plate play plot plug plum plus pocket point polar
pond pool port post pouch power practice prefer premier present press prime primer print prism private pro process
profile progress promise proof prosper proper puma pulse pure purple push quantum quest quick quiet quill quilt quiver
quote radar radiant radius rain ramp ranch range rapid raven ray reach ready real rebel record red reef reflect relay
reliant relish remote renew rent resolve rest retro rise river road robin rock rocket root rose round route royal ruby
rush saga sage sail salt sand sapphire savvy scale scout script sea search season second secure seed sense sentry
sequoia serve set seven shadow shape share sharp shell shield shift shine ship shop shore signal silver simple sirius
site six skill sky slack slate sleek slice smart smile smooth snap snow social soft solar solid solution sonar sonic
soul sound source south space spark spectrum speed sphere spice spin spiral spirit splash spot spring sprint sprout
square stack staff stage standard staples star start state station steam steel stellar step stone storm story strategy
stream street strike string stripe strong studio style subway success sugar summit sun super sure surface surge swan
swift switch symbol sync table tag tail talent tandem tango tap target task taste team tempo tender tent terra test
thread thrive thunder tide tiger tile time titan toast together tone tool top torch total touch tower town trace track
trade trail train transform travel tree trek trend tribe trident triumph true trust tune turn twist unison unite unity
universal up urban valley value vantage vault vector velocity venture verge vertex vessel via vibe victory view
village vine vision vista vital vivid voice void volt voyage wander warp water wave way wealth web well west whale
wheel white whole wild will willow wind window wing winter wire wisdom wise wish wolf wonder wood word work world wrap
yard yellow yes young zen zero zest zone zoom
"""
_OTHERS = """
blume burg falke feuer fleck freund garten haus heimat himmel kraft leben licht liebe merkur mond
netz quelle sonne stern tag traum vorwerk wald welt werk zeit zukunft
aube avenir bonheur carrefour ciel eau eclair etoile feu fleur free lumiere maison monde orange or
pomme printemps soleil
ahora amigo aqui barco casa cielo corazon estrella flor fuego luna luz mango mar mundo norte sol
alba amico casa cielo fiore fuoco luce luna mare mela mondo sole stella terra vento
amigo azul casa estrela flor lua mundo natura sol vida vivo
boom bloem bol blauw groen huis zon ster
dom dym gwiazda kropka lato mleko morze orzel plus slonce wisla zabka
билайн дом звезда лента магнит мир мегафон очаг перекресток пятерочка свет связь солнце точка яблоко
"""
COMMON_WORDS = frozenset(folded_name(word) for word in (_ENGLISH + _OTHERS).split())
# Words that often follow a name at the beginning of a sentence, but seldom a plain word.
_VERBS = """
    is was has had offers offered provides sells makes made says said helps lets allows claims
    announced launched introduced remains operates also does doesn isn can inc ltd llc gmbh ag corp
    ist hat bietet war macht verkauft est a propose offre vend es tiene ofrece vende fue
    è ha offre é tem oferece vende is heeft biedt to ma oferuje это предлагает имеет
"""
AFTER_A_NAME = frozenset(_VERBS.split())
# Nouns after a name that say what kind of thing it is: `the Target app`.
_CUES = (
    "app apps store stores website site platform software tool brand company retailer service suite"
    " account subscription plan team ceo cfo founder inc ltd llc gmbh ag corp"
)
KIND_AFTER_A_NAME = frozenset(_CUES.split())
# Languages that capitalise every noun, where a capital proves nothing.
CAPITAL_NOUNS = frozenset({"de", "lb"})
# Words after which the capital belongs to another name or a plain word: Amazon rainforest.
_OF_OTHERS = """
    audience audiences basin cider county effect forest fruit group groups juice juices jungle
    market markets pie pies rainforest river sauce script scripts tree trees zeit
"""
NOT_A_NAME_BEFORE = frozenset(_OF_OTHERS.split())
SHORT = 3  # letters of a Latin name that is matched only as written: SAP, not sap
MAX_ALIASES = 30
# Letters, digits, and the marks that belong to letters of the scripts that need them.
_TOKEN = re.compile(
    "(?:[^\\W_]|[\u0300-\u036f\u0591-\u05c7\u0610-\u061a\u064b-\u065f\u0670\u0900-\u0963\u0966-\u0e3a"
    "\u0e40-\u0e4e\u0e80-\u0ecd\u1000-\u1049\u1780-\u17d3\u3099\u309a])+"
)
_HOST = re.compile(r"(?:[\w-]+\.)+[a-z]{2,}")  # Booking.com is a name and a host
_HUMP = re.compile(r"(?<=[a-zà-ÿ])(?=[A-ZÀ-Þ])")
# Equivalents of `&` in answers of other languages.
_AND = r"\s?(?:&|\+|and|und|et|y|e|i|en|og|och|ja|и)\s?"
_TWO_LETTERS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """One name: how it is written, the pattern that finds it, and how it must be checked."""

    written: str
    folded: str
    pattern: re.Pattern[str]
    is_common: bool
    is_short: bool
    letters: str
    words: int  # with blanks between them


@dataclass(frozen=True, slots=True, kw_only=True)
class Names:
    """A business' name, its other names, and its own hosts."""

    name: str
    aliases: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    _forms: dict[str | None, tuple[Form, ...]] = field(
        default_factory=dict[str | None, tuple[Form, ...]], repr=False, compare=False
    )

    @classmethod
    def of(cls, name: str, *, aliases: Iterable[str] = (), url: str | None = None) -> "Names":
        """Return all names of a business: given, without legal form, spelt out, of its domain."""
        host = own_host(url)
        spellings = [name, bare_name(name), *aliases, *(bare_name(spelling) for spelling in aliases)]
        spellings += [spelt_out(spelling) for spelling in spellings]
        label = domain_label(host) if host else ""
        if label and folded_name(label) not in COMMON_WORDS and len(label) > _TWO_LETTERS:
            spellings.append(label)
        unique: dict[str, str] = {}
        for spelling in spellings:
            if (key := "".join(folded_name(spelling).split())) and _TOKEN.search(key):
                unique.setdefault(key, spelling.strip())
        hosts = [host or "", *(spelling for spelling in map(folded_name, spellings) if _HOST.fullmatch(spelling))]
        return cls(
            name=name, aliases=tuple(unique.values())[:MAX_ALIASES], hosts=tuple(dict.fromkeys(filter(None, hosts)))
        )

    def forms(self, language: str | None) -> tuple[Form, ...]:
        """Return every name as a pattern for a text of that language, longest first."""
        if language not in self._forms:
            forms = filter(None, (_form(name, language) for name in dict.fromkeys((self.name, *self.aliases))))
            self._forms[language] = tuple(sorted(forms, key=lambda form: -len(form.folded)))
        return self._forms[language]


def own_host(url: str | None) -> str | None:
    """Return the host of a website without port and `www`; None without a valid URL."""
    if not url:
        return None
    try:
        host = host_of(url if "://" in url else f"https://{url}")
    except BadUrl:
        return None
    return host.partition(":")[0].removeprefix("www.")


@lru_cache(maxsize=2_000)
def _form(name: str, language: str | None) -> Form | None:
    folded = folded_name(name).strip()
    tokens = _tokens(name)
    if not folded or not tokens:
        return None
    letters = "".join(folded_name(token) for token, _ in tokens)
    is_latin = all(script_of(letter) in {"latin", "digit"} for letter in letters)
    return Form(
        written=name.strip(),
        folded=folded,
        pattern=re.compile(_pattern(tokens, folded, language)),
        is_common=all(folded_name(word) in COMMON_WORDS for word in _TOKEN.findall(name)),
        is_short=is_latin and len(letters) <= SHORT,
        letters=letters,
        words=sum(gap != "^" for _, gap in tokens),
    )


def _tokens(name: str) -> Sequence[tuple[str, str]]:
    """Return the words of a name, each with what precedes it; camel case is split."""
    tokens: list[tuple[str, str]] = []
    position = 0
    for match in _TOKEN.finditer(name):
        if not folded_name(match[0]):
            continue
        gap = name[position : match.start()] if tokens else ""
        humps = _HUMP.split(match[0]) if len(match[0]) > SHORT else [match[0]]
        tokens.append((humps[0], gap))
        tokens += [(part, "^") for part in humps[1:]]
        position = match.end()
    return tokens


def _pattern(tokens: Sequence[tuple[str, str]], folded: str, language: str | None) -> str:
    *first, last = (folded_name(token) for token, _ in tokens)
    endings = sorted(inflected(last, language), key=len, reverse=True)
    words = [*map(re.escape, first), f"(?:{'|'.join(map(re.escape, (*endings, last)))})"]
    is_tiny = sum(len(token) for token, _ in tokens) <= SHORT
    gaps = ["", *(_gap(gap, is_tiny=is_tiny) for _, gap in tokens[1:])]
    name = "".join(gap + word for gap, word in zip(gaps, words, strict=True))
    before, after = glued(last)
    plus = r"(?:\s?\+|\splus\b)" if folded.endswith("+") else ""
    return f"{before}({name}){plus}{after}"


def _gap(gap: str, *, is_tiny: bool) -> str:
    """Return the pattern of what may be between two words, by what is there in the name."""
    if "&" in gap or "+" in gap:
        return _AND
    if gap.strip() == "." or "'" in folded_name(gap):
        return r"[.']?"
    # In names of single letters a blank would match any two words: `e on` is not E.ON.
    return r"[-./]?" if is_tiny else r"(?:\s-\s|[®™]\s|[-\s_/'·•®™])?"
