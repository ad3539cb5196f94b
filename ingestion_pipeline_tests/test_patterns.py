"""No pattern of ours is slow on text of pages: `re` holds the interpreter while it searches.

Every pattern of the package is collected, from the modules as they are imported and from the calls
in their source, and searched in 64 kB of many pieces, some of them made from the pattern itself.
"""

import ast
import importlib
import pkgutil
import re
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from pathlib import Path
from re import _constants as ops  # pyright: ignore[reportAttributeAccessIssue]
from re import _parser as parser  # pyright: ignore[reportAttributeAccessIssue]
from types import FrameType, ModuleType
from typing import Any, cast

import pytest

import ingestion_pipeline
from ingestion_pipeline.catalogs.extraction import record
from ingestion_pipeline.catalogs.extraction.rules import course_words, listed_records
from ingestion_pipeline.companies.matching import listed_job
from ingestion_pipeline.reading.evidence import locating
from ingestion_pipeline.reading.structured import sitemaps
from ingestion_pipeline.series import chapter_labels
from ingestion_pipeline.sources import platforms
from ingestion_pipeline.websites import mentions

CHARACTERS = 64_000
LIMIT_SECONDS = 0.05
# Growth of the time when the text is four times as long: linear 4, quadratic 16. A busy machine is slow, not quadratic.
SUPERLINEAR = 8
# A first look at a part: one that takes longer is tried in full. A quadratic pattern takes several times as long, also
# on a fast machine; a linear one that is slow in full takes as long.
SAMPLE_CHARACTERS = 3_000
SAMPLE_SECONDS = 0.0006
TRIES = 4
PATTERN_PIECES = 16
# Pieces that hostile text repeats: blanks, signs, digits, words, and starts of markup.
PIECES = (
    *(" ", "\n", "\t", "\u00a0", "\u3000", " \n", ".", "-", "_", ",", ";", ":", "/", "'", '"'),
    *("(", ")", "[", "]", "](", "<", ">", "&", "#", "=", "+", "*", "@", "$", "|", "{", "\\"),
    *("a", "A", "é", "漢", "1", "0", "a ", "A ", "1 ", "a.", "A. ", "a-", "a, ", "1,", "9.", "1a"),
    *("GmbH ", "Inc. ", "<a ", "</", "<!--", "http://", "2024-", "€1 ", "x=", "- ", "&#"),
)

Examples = Callable[[], list[re.Pattern[str]]]
# Patterns that are made while the program runs, by the function that makes them: a set as it makes
# them, or the fixed part around a text that is escaped.
BUILT: Mapping[str, Examples] = {
    "catalogs.extraction.record._count_patterns": lambda: [record._count_patterns(("courses", "Kurse"))[1]],
    "catalogs.extraction.rules.course_words._any_of": lambda: [
        course_words._noise(),
        course_words._sections(),
        *(pattern for _, pattern in course_words._patterns()),
    ],
    "catalogs.extraction.rules.listed_records._pattern_of": lambda: [
        listed_records._pattern_of(example) for example in ("13-14377", "2023AP001167", "No. 22-0282/AR")
    ],
    "catalogs.recipes.next_pages._highest": lambda: [re.compile(r"https://a\.test/\?page=([0-9]{1,7})")],
    "companies.analysis.company_analysis.score": lambda: [re.compile(r"(?<!\w)Berlin(?!\w)", re.IGNORECASE)],
    "companies.matching.listed_job._pattern": lambda: [
        listed_job._pattern(term) for term in ("go", "c++", "machine learning", ".net", "head of sales")
    ],
    "engine.system_spec.holds": list,  # of our own rows, not of page text
    "reading.structured.organizations._without_article": lambda: [
        re.compile(rf"^(?:{articles})\s+(?=\S{{2}})", re.IGNORECASE) for articles in ("the", "der|die|das", "le|la|les")
    ],
    "reading.evidence.locating.locate": lambda: [re.compile(r"(?<!\w)anchor(?!\w)")],
    "reading.evidence.locating._nearest": lambda: [re.compile(r"spelled")],
    "reading.evidence.locating._numbers": lambda: locating._numbers("5"),
    "reading.structured.sitemaps._read": lambda: [
        re.compile(r"</url\s*>", re.IGNORECASE),
        re.compile(r"</(?:urlset|sitemapindex)\s*>\s*\Z", re.IGNORECASE),
    ],
    "reading.structured.sitemaps._field": lambda: [sitemaps._field("sm:", "loc")],
    "websites.information._is_plain_word": lambda: [re.compile(r"(?<![\w.@/#-])coffee(?![\w@/-]|\.\w)")],
    "series.chapter_labels._title_pattern": lambda: [
        cast("re.Pattern[str]", chapter_labels._title_pattern("My 2 lives (part 3)")[0])
    ],
    "series.chapter_labels._spelled": lambda: [
        pattern for *patterns, _ in chapter_labels._number_words() for pattern in patterns
    ],
    "sources.platforms._shape": lambda: [
        shape.host for shapes in platforms._shapes().by_domain.values() for shape in shapes
    ],
    "websites.mentions._form": lambda: [
        form.pattern for name in ("Acme & Sons Ltd", "Booking.com", "O'Reilly") if (form := mentions._form(name, "en"))
    ],
}
OTHER_FUNCTIONS = {"escape", "purge", "error", "Pattern", "Match"}


@dataclass(frozen=True)
class Used:
    """A pattern, where it is, and the methods that it is used by."""

    pattern: re.Pattern[Any]
    where: str
    methods: frozenset[str]


@cache
def modules() -> Mapping[str, ModuleType]:
    result = pkgutil.walk_packages(ingestion_pipeline.__path__, "ingestion_pipeline.")
    named = [module.name for module in result if ".migrations" not in module.name]
    return {name.partition(".")[2]: importlib.import_module(name) for name in named}


@cache
def source(name: str) -> ast.Module:
    return ast.parse(Path(cast("str", modules()[name].__file__)).read_text())


def patterns_in(value: object, depth: int = 0) -> Iterator[re.Pattern[Any]]:
    """Every pattern in a value of a module: itself, in a collection, in a dataclass."""
    if isinstance(value, re.Pattern):
        yield value
    elif type(value) in (tuple, list, set, frozenset, dict) and depth < 4:
        for part in cast("Any", value):
            yield from patterns_in(part, depth + 1)
            if isinstance(value, dict):
                yield from patterns_in(cast("Any", value)[part], depth + 1)
    elif is_dataclass(value) and not isinstance(value, type) and depth < 4:
        for field in fields(value):
            yield from patterns_in(getattr(value, field.name, None), depth + 1)


@cache
def uses() -> tuple[Mapping[tuple[str, str], set[str]], Counter[tuple[str, str]]]:
    """The attributes read of each name, and how often it is used in any other way.

    A private name by its module, a public one all over the package.
    """
    attributes: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    others: Counter[tuple[str, str]] = Counter()
    for module in modules():
        owners: set[int] = set()
        for node in ast.walk(source(module)):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                attributes[scoped(module, node.value.id)].add(node.attr)
                owners.add(id(node.value))
        for node in ast.walk(source(module)):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                others[scoped(module, node.id)] += id(node) not in owners
    return attributes, others


def scoped(module: str, name: str) -> tuple[str, str]:
    return (module if name.startswith("_") else "", name)


def methods_of(module: str, name: str) -> frozenset[str]:
    """By which methods the pattern of that name is used; by `finditer` where that is not sure.

    What stands at the beginning of a text only need not be quick to be found in its middle.
    """
    attributes, others = uses()
    key = scoped(module, name)
    methods = {"match", "fullmatch"}
    by = {item if item in methods else "finditer" for item in attributes[key] - {"pattern", "groups"}}
    return frozenset(by) if by and not others[key] else frozenset({"finditer"})


def calls(tree: ast.AST, function: str = "") -> Iterator[tuple[str, ast.Call, str]]:
    """Each call of a function of `re`, and the function of ours that it stands in."""
    for node in ast.iter_child_nodes(tree):
        is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        yield from calls(node, cast("Any", node).name if is_function else function)
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        if ast.unparse(node.func.value) == "re" and node.func.attr not in OTHER_FUNCTIONS:
            yield function, node, node.func.attr


def evaluated(module: ModuleType, call: ast.Call) -> re.Pattern[Any]:
    """The pattern of a call whose arguments are literals and names of the module."""
    flags = [arg for arg in call.args[1:] if "re." in ast.unparse(arg)]
    flags += [keyword.value for keyword in call.keywords if keyword.arg == "flags"]
    values = [
        eval(compile(ast.Expression(item), "a pattern", "eval"), vars(module)) for item in (call.args[0], *flags[:1])
    ]
    return re.compile(*values)


def module_patterns() -> Iterator[Used]:
    for name, module in modules().items():
        for key, value in vars(module).items():
            for pattern in patterns_in(value):
                methods = methods_of(name, key) if pattern is value else frozenset({"finditer"})
                yield Used(pattern, f"{name}.{key}", methods)


def function_patterns() -> Iterator[Used]:
    for name, module in modules().items():
        for function, call, method in calls(source(name)):
            where = f"{name}.{function}"
            if function and where not in BUILT:
                by = method if method in {"match", "fullmatch"} else "finditer"
                yield Used(evaluated(module, call), where, frozenset({by}))
    for where, build in BUILT.items():
        for pattern in build():
            yield Used(pattern, where, frozenset({"match"} if "platforms._shape" in where else {"finditer"}))


def one_alternative(items: list[tuple[Any, Any]]) -> str:
    """A character that a set of the pattern holds."""
    examples = {ops.CATEGORY_SPACE: " ", ops.CATEGORY_DIGIT: "1", ops.CATEGORY_WORD: "a"}
    inner = "".join(
        chr(value if op is ops.LITERAL else value[0]) for op, value in items if op in (ops.LITERAL, ops.RANGE)
    )
    inner += "".join(examples.get(value, "-") for op, value in items if op is ops.CATEGORY)
    if items[0][0] is not ops.NEGATE:
        return inner[:1] or "a"
    return next((sign for sign in 'a1 -.,(<"' if sign not in inner), "\x02")


def example(tree: Any, pieces: list[str]) -> str:
    """A text that the pattern is made for; and by the way, the pieces that make it up."""
    repeats = (ops.MAX_REPEAT, ops.MIN_REPEAT, ops.POSSESSIVE_REPEAT)
    text = ""
    for op, value in tree:
        before = text
        if op is ops.LITERAL:
            text += chr(value)
        elif op in (ops.NOT_LITERAL, ops.ANY, ops.IN):
            text += one_alternative(value) if op is ops.IN else "a"
        elif op in repeats:
            part = example(value[2], pieces)
            text += part * max(value[0], 1)
            pieces += [part, before, text]
        elif op in (ops.SUBPATTERN, ops.ATOMIC_GROUP):
            text += example(value[3] if op is ops.SUBPATTERN else value, pieces)
        elif op is ops.BRANCH:
            parts = [example(branch, pieces) for branch in value[1]]
            pieces += parts[:4]
            text += parts[0]
        elif op is ops.ASSERT:
            example(value[1], pieces)
    pieces.append(text)
    return text


def shapes(pattern: re.Pattern[Any]) -> Iterator[tuple[str, str, str]]:
    """Yield the shapes of test texts: a beginning, a repeated piece, an end."""
    source = cast("Any", pattern.pattern)
    pieces: list[str] = []
    example(parser.parse(source.decode("latin-1") if isinstance(source, bytes) else source), pieces)
    own = list(dict.fromkeys(filter(None, pieces)))[:PATTERN_PIECES]
    for piece in dict.fromkeys((*own, *PIECES)):
        yield "", piece, ""
        yield "Xa ", piece, "\0"
    for piece in own[:6]:
        for sign in (" ", "\n", "a", "0", "."):
            yield piece, sign, ""


def text_of(pattern: re.Pattern[Any], shape: tuple[str, str, str], characters: int) -> Any:
    start, piece, end = shape
    text = start + (piece * (characters // len(piece) + 1))[:characters] + end
    return text.encode() if isinstance(pattern.pattern, bytes) else text


class TooSlow(Exception):
    pass


def _stop(_: int, __: FrameType | None) -> None:
    raise TooSlow


def cpu_seconds(pattern: re.Pattern[Any], method: str, text: Any) -> float:
    """Return the CPU seconds of one search, aborted at ten times the limit."""
    search = getattr(pattern, method)
    signal.setitimer(signal.ITIMER_VIRTUAL, LIMIT_SECONDS * 10)
    started = time.process_time()
    try:
        try:
            if method == "finditer":
                for _ in search(text):
                    pass
            else:
                search(text)
        finally:  # a search handles no signal: it may arrive here
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    except TooSlow:
        return LIMIT_SECONDS * 10
    return time.process_time() - started


def slow_text(used: Used) -> str | None:
    """Return the start of a text of 64 kB that takes the pattern too long each time, more than its length explains."""
    for shape in shapes(used.pattern):
        sample = text_of(used.pattern, shape, SAMPLE_CHARACTERS)
        for method in used.methods:
            if cpu_seconds(used.pattern, method, sample) < SAMPLE_SECONDS:
                continue
            text = text_of(used.pattern, shape, CHARACTERS)
            seconds = [cpu_seconds(used.pattern, method, text)]
            while seconds[-1] > LIMIT_SECONDS and len(seconds) < TRIES:
                seconds.append(cpu_seconds(used.pattern, method, text))
            if min(seconds) <= LIMIT_SECONDS:
                continue
            quarter = text_of(used.pattern, shape, CHARACTERS // 4)
            growth = min(seconds) / min(cpu_seconds(used.pattern, method, quarter) for _ in range(TRIES))
            if growth > SUPERLINEAR or min(seconds) >= LIMIT_SECONDS * 10:
                return f"{method} of {text[:40]!r} by {used.pattern.pattern[:80]!r}"
    return None


@pytest.fixture
def timer() -> Iterator[None]:
    before = signal.signal(signal.SIGVTALRM, _stop)
    yield
    signal.signal(signal.SIGVTALRM, before)


@pytest.mark.slow
@pytest.mark.usefixtures("timer")
def test_no_pattern_takes_long_for_64_kb_of_any_piece() -> None:
    result: dict[tuple[Any, int], Used] = {}
    for used in (*module_patterns(), *function_patterns()):
        key = used.pattern.pattern, used.pattern.flags
        methods = used.methods | (result[key].methods if key in result else frozenset())
        result[key] = Used(used.pattern, used.where, methods)

    slow = {used.where: text for used in result.values() if (text := slow_text(used))}

    assert len(result) > 400
    assert slow == {}


@pytest.mark.slow
@pytest.mark.usefixtures("timer")
@pytest.mark.parametrize("pattern", [r"\s+$", r"\]\([^)\s]*\)", r"[0-9]+ \w+", r"x\s*,?\s*y"])
def test_a_quadratic_pattern_is_detected(pattern: str) -> None:
    assert slow_text(Used(re.compile(pattern), "here", frozenset({"finditer"}))) is not None


@pytest.mark.slow
def test_every_pattern_compiled_at_run_time_has_an_example() -> None:
    built: set[str] = set()
    for name, module in modules().items():
        for function, call, _ in calls(source(name)):
            if function:
                try:
                    evaluated(module, call)
                except NameError:
                    built.add(f"{name}.{function}")

    assert built == set(BUILT)
