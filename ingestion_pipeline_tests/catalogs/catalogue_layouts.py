"""Pages of made-up universities in layouts of many kinds, with what else such pages hold around their courses.

The courses' titles and descriptions are real ones; codes, labels, facts and chrome are drawn at random. `WRITTEN_WITH`
are the layouts at hand while the rules were written, `SCORED_ONLY` those that were only scored.
"""

import json
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from ingestion_pipeline_tests.catalogs.course_pages import read_courses

MIN_WORDS = 12  # of a description
SIZES = (4, 8, 15)  # courses of a page
SEEDS = range(6)


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """A course as a page states it; without a code, its title is its key."""

    code: str | None
    title: str
    text: str

    @property
    def key(self) -> str:
        return self.code or self.title


Layout = Callable[[Sequence[Course], random.Random], str]

NAV = (
    "<header><a href='/'><img alt='University of Example'></a><nav><ul><li><a href='/study'>Study</a></li>"
    "<li><a href='/research'>Research</a></li><li><a href='/alumni'>Alumni and giving</a></li></ul></nav></header>"
)
CHROMES = (
    (
        f"{NAV}<div class='cookie-banner'><h2>We value your privacy</h2><p>We use cookies to improve your experience on"
        " our site, to analyse traffic and to show you relevant advertising from our partners.</p>"
        "<button>Accept all</button></div>",
        "<footer><p>University of Example, Building 12, 100 Campus Drive.</p><p>Students get Office 365 and Windows"
        " 11 free of charge while they are enrolled with us.</p></footer>",
    ),
    (
        "<div id='top-bar'><a href='/staff'>Staff</a> | <a href='/students'>Students</a> | <a href='/portal'>Office"
        " 365</a></div><div class='filters'><h3>Filter results</h3><h4>Level</h4><ul><li>Undergraduate (41)</li>"
        "<li>Postgraduate (12)</li></ul><h4>Campus</h4><ul><li>North (30)</li><li>South (23)</li></ul></div>",
        "<div class='news'><h3>Campus reopens after the storm</h3><p>The campus was reopened on Monday after the"
        " storm, and all the classes take place as planned this week.</p><h3>Library extends its hours</h3><p>The"
        " library will stay open until midnight for the whole of the examination period this year.</p></div>"
        "<div class='footer-links'><p>Office 365 | Moodle | Email</p><p>Copyright 2024 University of Example. All"
        " rights are reserved by the university.</p></div>",
    ),
    (
        "<div role='banner'><p>Apply by 15 January 2025 for a place in the autumn of the same year.</p></div><div"
        " class='sidebar'><h3>Quick links</h3><ul><li><a href='/fees'>Fees and funding</a></li><li><a href='/visit'>"
        "Visit us</a></li></ul><h3>Contact</h3><p>Room 204, Hall 7. Telephone 555 0100, or write to the office of"
        " admissions.</p></div>",
        "<div class='contact-us'><h3>Get in touch</h3><p>Our team is happy to answer the questions that you may have"
        " about our courses.</p></div><div role='contentinfo'>PO Box 1234 | ABN 12 345 678</div>",
    ),
)


def _facts(rng: random.Random) -> str:
    level, term = rng.choice(("Undergraduate", "Graduate", "Level 5")), rng.choice(("Fall", "Spring", "Summer"))
    return f"{level} | {rng.choice((3, 4, 6))} credits | {term}"


def _restrictions(rng: random.Random) -> str:
    return rng.choice(
        (
            "Must be enrolled in one of the following colleges: Arts, Science or Engineering.",
            "Open only to majors in their third year of study or to others with consent.",
        )
    )


def _halves(text: str) -> list[str]:
    """Return the first sentence, and the others."""
    first, stop, rest = text.partition(". ")
    return [first + stop.strip(), rest] if rest else [first]


def cards(courses: Sequence[Course], rng: random.Random) -> str:
    return "".join(
        f"<div class='card'><div class='card-head'><span class='ref'>{course.code}</span><h3><a href='#'>"
        f"{escape(course.title)}</a></h3></div><p class='meta'>{_facts(rng)}</p><p>{escape(course.text)}</p>"
        "<a class='more' href='#'>Read more</a></div>"
        for course in courses
    )


def facts_first(courses: Sequence[Course], rng: random.Random) -> str:
    return "".join(
        f"<h4>{course.code} {escape(course.title)}</h4><p>{_facts(rng)}</p>"
        f"<p><b>Restriction(s):</b> {_restrictions(rng)}</p><p>{escape(course.text)}</p>"
        for course in courses
    )


def topic_labels(courses: Sequence[Course], rng: random.Random) -> str:
    return "".join(
        f"<div class='entry'><p><strong>{course.code}: {escape(course.title)}</strong></p>"
        f"<p>Topic: {rng.choice(('Regional studies of the coast and its people', 'Methods in the field'))}</p>"
        f"<p>{escape(course.text)}</p><p>Taught: {rng.choice(('every autumn', 'in alternate years'))}</p></div>"
        for course in courses
    )


def evening_classes(courses: Sequence[Course], rng: random.Random) -> str:
    day = ("Mondays", "Tuesdays", "Thursdays")
    return "".join(
        f"<article class='class'><h3>{escape(course.title)}</h3><ul><li>{rng.choice(day)}, 18:30 to 20:30</li>"
        f"<li>10 weeks from 23 September</li><li>\u00a3{rng.randint(80, 240)}</li></ul><p>{escape(course.text)}</p>"
        "<p><a href='#'>Book now</a></p></article>"
        for course in courses
    )


def modules_in_a_table(courses: Sequence[Course], rng: random.Random) -> str:
    rows = "".join(
        f"<tr><td>{escape(course.title)}</td><td>{rng.choice((10, 15, 20, 30))}</td><td>{rng.choice('ABC')}</td>"
        f"<td>{escape(course.text)}</td></tr>"
        for course in courses
    )
    return f"<table><tr><th>Module</th><th>Credits</th><th>Block</th><th>What it covers</th></tr>{rows}</table>"


def accordion(courses: Sequence[Course], rng: random.Random) -> str:
    return "".join(
        f"<div class='accordion-item'><button aria-expanded='true'>{course.code} | {escape(course.title)}</button>"
        f"<div class='panel'><dl><dt>Credit value</dt><dd>{rng.choice((10, 20))}</dd><dt>Teaching staff</dt><dd>Dr"
        f" {rng.choice(('Hill', 'Moor', 'Lake'))}</dd></dl><p>{escape(course.text)}</p></div></div>"
        for course in courses
    )


def list_items(courses: Sequence[Course], rng: random.Random) -> str:
    items = "".join(
        f"<li><b>{escape(course.title)}</b> ({course.code})<br>{escape(course.text)}<br><i>Offered:"
        f" {rng.choice(('Fall', 'Spring'))}</i></li>"
        for course in courses
    )
    return f"<ul class='list'>{items}</ul>"


def bold_titles(courses: Sequence[Course], rng: random.Random) -> str:
    return "".join(
        f"<p><strong>{escape(course.title)}</strong></p><p>{escape(course.text)}</p><p><em>Duration:"
        f" {rng.randint(4, 12)} weeks</em></p>"
        for course in courses
    )


def definitions_without_codes(courses: Sequence[Course], rng: random.Random) -> str:
    body = "".join(
        f"<dt>{escape(course.title)}</dt><dd>{escape(course.text)} {rng.choice((15, 30))} ECTS.</dd>"
        for course in courses
    )
    return f"<dl>{body}</dl>"


def linked_rows(courses: Sequence[Course], rng: random.Random) -> str:
    return "".join(
        f"<div class='row'><div class='col-3'><a href='/m/{number}'>{course.code}</a><br>{rng.choice((5, 10))} ECTS"
        f"</div><div class='col-9'><div class='t'>{escape(course.title)}</div><div class='d'>{escape(course.text)}"
        "</div></div></div>"
        for number, course in enumerate(courses)
    )


def labelled_blocks(courses: Sequence[Course], rng: random.Random) -> str:
    return "".join(
        f"<section><h2>{escape(course.title)}</h2><p><b>Reference:</b> {course.code}</p><p><b>Topic:</b> Humanities"
        f" and the arts of the region</p><p><b>Tutor:</b> {rng.choice(('A. Hill', 'B. Moor'))}</p>"
        f"<p>{escape(course.text)}</p><p><b>Restriction(s):</b> {_restrictions(rng)}</p></section>"
        for course in courses
    )


def plain_paragraphs(courses: Sequence[Course], rng: random.Random) -> str:
    return "".join(
        f"<p>{course.code} - {escape(course.title)}<br>{_facts(rng)}<br>{escape(course.text)}<br>"
        f"Restriction(s): {_restrictions(rng)}</p>"
        for course in courses
    )


def grid_with_links(courses: Sequence[Course], rng: random.Random) -> str:
    return "".join(
        f"<li class='grid__item'><a class='tile' href='/c/{number}'><div class='tile__img'></div><div"
        f" class='tile__title'>{escape(course.title)}</div><div class='tile__sub'>Starts {rng.randint(1, 28)} October"
        f"</div><div class='tile__text'>{escape(course.text)}</div></a></li>"
        for number, course in enumerate(courses)
    )


def details_elements(courses: Sequence[Course], rng: random.Random) -> str:
    return "".join(
        f"<details open><summary>{escape(course.title)}</summary><p>{_facts(rng)}</p><p>{escape(course.text)}</p>"
        "</details>"
        for course in courses
    )


def code_below(courses: Sequence[Course], rng: random.Random) -> str:
    return "".join(
        f"<div class='unit'><h3>{escape(course.title)}</h3><div>{course.code}</div><div>{rng.choice((1, 2))} units"
        f"</div><div>{escape(course.text)}</div></div>"
        for course in courses
    )


def departments(courses: Sequence[Course], rng: random.Random) -> str:
    parts: list[str] = []
    for number, course in enumerate(courses):
        if number % 5 == 0:
            parts.append(
                f"<h2>Department {number // 5 + 1}</h2><p>The department teaches in small groups, and every student has"
                " an adviser from the first day on.</p>"
            )
        parts.append(
            f"<p class='c'><span class='n'>{course.code}</span> <span class='t'>{escape(course.title)}</span></p>"
            f"<p class='d'>{escape(course.text)}</p><p class='x'>{rng.choice((3, 4))} credits</p>"
        )
    return "".join(parts)


def rows_below(courses: Sequence[Course], rng: random.Random) -> str:
    rows = "".join(
        f"<tr class='head'><td>{course.code}</td><td>{escape(course.title)}</td><td>{rng.choice((3, 4))}</td></tr>"
        f"<tr><td colspan='3'>{escape(course.text)}</td></tr><tr><td colspan='3'>Restriction(s): {_restrictions(rng)}"
        "</td></tr>"
        for course in courses
    )
    return f"<table><tr><th>Code</th><th>Title</th><th>Credits</th></tr>{rows}</table>"


def facts_after(courses: Sequence[Course], rng: random.Random) -> str:
    return "".join(
        f"<div class='result'><h3><a href='#'>{escape(course.title)} ({course.code})</a></h3><div class='body'>"
        f"{escape(course.text)}</div><dl><dt>Topic</dt><dd>Culture and society of the modern world</dd><dt>Level</dt>"
        f"<dd>{rng.choice((4, 5, 6))}</dd><dt>Restriction(s)</dt><dd>{_restrictions(rng)}</dd></dl></div>"
        for course in courses
    )


def handbook(courses: Sequence[Course], rng: random.Random) -> str:
    return "".join(
        f"<h3>{escape(course.title)}</h3><table><tr><td>Modulnummer</td><td>{course.code}</td></tr><tr><td>Dozent</td>"
        f"<td>Prof. {rng.choice(('Berg', 'Thal'))}</td></tr><tr><td>Leistungspunkte</td><td>{rng.choice((5, 6))}</td>"
        f"</tr><tr><td>Inhalt</td><td>{escape(course.text)}</td></tr></table>"
        for course in courses
    )


def badges_above(courses: Sequence[Course], rng: random.Random) -> str:
    items = "".join(
        f"<li><span class='badge'>{rng.choice(('New', 'Fully booked', 'Places left'))}</span><a href='#'><strong>"
        f"{escape(course.title)}</strong></a><span class='who'>with {rng.choice(('Ann Hill', 'Bo Moor'))}</span><p>"
        f"{escape(course.text)}</p><span>\u20ac{rng.randint(50, 300)}</span></li>"
        for course in courses
    )
    return f"<ul>{items}</ul>"


def one_paragraph(courses: Sequence[Course], rng: random.Random) -> str:
    return "".join(
        f"<p><b>{course.code} {escape(course.title)}.</b> <i>{rng.choice(('Fall', 'Spring'))}.</i>"
        f" {escape(course.text)}</p>"
        for course in courses
    )


def two_paragraphs(courses: Sequence[Course], rng: random.Random) -> str:
    return "".join(
        f"<div><h3>{escape(course.title)}</h3><p>{course.code} \u00b7 {rng.choice((3, 4))} credits \u00b7 Fall</p>"
        f"{''.join(f'<p>{escape(half)}</p>' for half in _halves(course.text))}</div>"
        for course in courses
    )


def generated_classes(courses: Sequence[Course], rng: random.Random) -> str:
    def name() -> str:
        return f"css-{rng.randrange(16**6):06x}"

    return "".join(
        f"<div class='{name()}'><div class='{name()}'><p class='{name()}'>{escape(course.title)}</p></div><div"
        f" class='{name()}'><p class='{name()}'>{rng.randint(2, 9)} weeks</p><p class='{name()}'>{escape(course.text)}"
        "</p></div></div>"
        for course in courses
    )


def numbered_sections(courses: Sequence[Course], rng: random.Random) -> str:
    return "".join(
        f"<h3>{number}. {escape(course.title)}</h3><p>{escape(course.text)}</p><ul><li>Format: "
        f"{rng.choice(('online', 'on campus'))}</li><li>Price: {rng.randint(90, 900)} EUR</li></ul>"
        for number, course in enumerate(courses, start=1)
    )


def questions_between(courses: Sequence[Course], rng: random.Random) -> str:
    body = "".join(
        f"<section class='offer'><h3>{escape(course.title)}</h3><div class='when'>{rng.choice(('Mon', 'Wed'))} 7pm"
        f"</div><div class='what'>{escape(course.text)}</div></section>"
        for course in courses
    )
    return (
        f"{body}<h2>Questions</h2><h3>How do I enrol?</h3><p>Send us the form with your name and the name of the class"
        " that you want to take.</p><h3>Can I get my money back?</h3><p>Up to two weeks before the first evening you"
        " get all of the money back.</p>"
    )


def timeline(courses: Sequence[Course], rng: random.Random) -> str:
    items = "".join(
        f"<li><time>{rng.randint(1, 28)} Sept</time><h4><a href='#'>{escape(course.title)}</a></h4><p class='teaser'>"
        f"{escape(course.text)}</p><span class='lvl'>{rng.choice(('Beginners', 'All levels'))}</span></li>"
        for course in courses
    )
    return f"<ol class='timeline'>{items}</ol>"


def code_in_brackets(courses: Sequence[Course], rng: random.Random) -> str:
    rows = "".join(
        f"<tr><td>{escape(course.title)} [{course.code}]</td><td>{escape(course.text)}</td>"
        f"<td>{rng.choice((3, 5))} ECTS</td></tr>"
        for course in courses
    )
    return f"<table><tr><th>Module</th><th>Content</th><th>Load</th></tr>{rows}</table>"


def code_under_title(courses: Sequence[Course], rng: random.Random) -> str:
    return "".join(
        f"<h3>{escape(course.title)}</h3><h5>{course.code}</h5><p>{escape(course.text)}</p><p>Staff:"
        f" {rng.choice(('M. Hill', 'N. Moor'))}</p>"
        for course in courses
    )


def fields_with_labels(courses: Sequence[Course], rng: random.Random) -> str:
    def field(label: str, value: str) -> str:
        return f"<div class='f'><div class='f-l'>{label}</div><div class='f-v'>{value}</div></div>"

    return "".join(
        f"<div class='views-row'>{field('Title', escape(course.title))}{field('Course ID', course.code or '')}"
        f"{field('Topic', 'Nature and the environment of the north')}{field('Units', str(rng.choice((2, 3))))}"
        f"{field('Description', escape(course.text))}{field('Restriction(s)', _restrictions(rng))}</div>"
        for course in courses
    )


def commas(courses: Sequence[Course], rng: random.Random) -> str:
    return "".join(
        f"<p class='h'><strong>{course.code}, {escape(course.title)}, {rng.choice((3, 4))} credits</strong></p>"
        f"<p class='b'>{escape(course.text)}</p>"
        for course in courses
    )


def by_semester(courses: Sequence[Course], rng: random.Random) -> str:
    items = [f"<li><strong>{escape(course.title)}:</strong> {escape(course.text)}</li>" for course in courses]
    half = len(items) // 2 + rng.randint(0, 1)
    return f"<h2>Semester 1</h2><ul>{''.join(items[:half])}</ul><h2>Semester 2</h2><ul>{''.join(items[half:])}</ul>"


def figures(courses: Sequence[Course], rng: random.Random) -> str:
    return "".join(
        f"<figure><img src='/i.png' alt=''><figcaption><h5>{escape(course.title)}</h5><small>Beginner \u00b7"
        f" {rng.randint(4, 20)} lessons</small><div>{escape(course.text)}</div><button>Add to cart</button>"
        "</figcaption></figure>"
        for course in courses
    )


def several_definitions(courses: Sequence[Course], rng: random.Random) -> str:
    body = "".join(
        f"<dt>{escape(course.title)}</dt><dd>Code: {course.code}</dd><dd>Restriction(s): {_restrictions(rng)}</dd>"
        f"<dd>{escape(course.text)}</dd>"
        for course in courses
    )
    return f"<dl>{body}</dl>"


def spans(courses: Sequence[Course], rng: random.Random) -> str:
    return "".join(
        f"<div class='c'><span class='c1'>{course.code}</span><span class='c2'>{escape(course.title)}</span><span"
        f" class='c3'>{rng.choice((3, 4))} cr.</span><p>{escape(course.text)}</p></div>"
        for course in courses
    )


def two_columns(courses: Sequence[Course], rng: random.Random) -> str:
    return "".join(
        f"<div class='grid'><aside class='info'><p>{rng.choice(('Online', 'In person'))}</p><p>{rng.randint(1, 9)} days"
        f"</p></aside><div class='main'><a href='#'>{escape(course.title)}</a><p>{escape(course.text)}</p></div></div>"
        for course in courses
    )


WITH_CODES: dict[str, Layout] = {
    layout.__name__: layout
    for layout in (
        *(cards, facts_first, topic_labels, accordion, list_items, linked_rows, labelled_blocks, plain_paragraphs),
        *(code_below, departments, rows_below, facts_after, handbook, one_paragraph, two_paragraphs),
    )
}
WITHOUT_CODES: dict[str, Layout] = {
    layout.__name__: layout
    for layout in (
        *(evening_classes, modules_in_a_table, bold_titles, definitions_without_codes, grid_with_links),
        *(details_elements, badges_above, generated_classes, numbered_sections, questions_between),
    )
}
SCORED_ONLY: dict[str, Layout] = {
    layout.__name__: layout
    for layout in (code_in_brackets, code_under_title, fields_with_labels, commas, several_definitions, spans)
}
SCORED_ONLY_WITHOUT_CODES: dict[str, Layout] = {
    layout.__name__: layout for layout in (timeline, by_semester, figures, two_columns)
}
CODES: tuple[Callable[[int], str], ...] = (
    lambda number: f"ENV {100 + number}",
    lambda number: f"ARTH{2000 + number * 3}",
    lambda number: f"B-HUM-{200 + number}",
    lambda number: f"15.{300 + number}",
)


def page(layout: Layout, courses: Sequence[Course], *, seed: int) -> str:
    """Return a page of these courses with chrome around them."""
    rng = random.Random(seed)
    above, below = CHROMES[seed % len(CHROMES)]
    return (
        f"<html><head><title>Courses</title></head><body>{above}<div id='content'><h1>Courses</h1><p>Here you find"
        f" what we offer in the coming year, with all that you need to choose.</p>{layout(courses, rng)}</div>{below}"
        "</body></html>"
    )


def course_texts(file: Path) -> list[tuple[str, str]]:
    """Return titles and descriptions of real courses, each title once."""
    rows: Mapping[str, Mapping[str, str]] = json.loads(file.read_text())
    texts = {row["name"]: " ".join(row["description"].split()) for row in rows.values()}
    return [(name, text) for name, text in texts.items() if len(text.split()) > MIN_WORDS]


def _courses(texts: Sequence[tuple[str, str]], seed: int, *, has_codes: bool) -> list[Course]:
    code = CODES[seed % len(CODES)]
    return [
        Course(code=code(number * 7) if has_codes else None, title=title, text=text)
        for number, (title, text) in enumerate(random.Random(seed).sample(texts, SIZES[seed % len(SIZES)]))
    ]


def _letters(text: object) -> str:
    return re.sub("[^a-z0-9]+", "", str(text).lower())


@dataclass(slots=True)
class LayoutScore:
    """Counts over pages: expected, read and right records, and those whose description is right, too."""

    expected: int = 0
    read: int = 0
    right: int = 0
    described: int = 0

    @property
    def recall(self) -> float:
        return self.right / self.expected

    @property
    def precision(self) -> float:
        return self.right / max(self.read, 1)

    def add(self, layout: Layout, texts: Sequence[tuple[str, str]], *, has_codes: bool) -> None:
        """Add pages of each number of courses, form of code and chrome."""
        for seed in SEEDS:
            truth = {_letters(course.key): course for course in _courses(texts, seed, has_codes=has_codes)}
            found = {
                _letters(record["course_id"]): record
                for record in read_courses(page(layout, list(truth.values()), seed=seed))
            }
            hits = truth.keys() & found.keys()
            self.expected, self.read = self.expected + len(truth), self.read + len(found)
            self.right += len(hits)
            self.described += sum(_describes(found[key]["course_description"], truth[key].text) for key in hits)


def _describes(text: object, expected: str) -> bool:
    """Return whether the text is the expected one, but for credits at its end."""
    own, true = _letters(text), _letters(expected)
    return own.startswith(true) and len(own) <= len(true) + 10
