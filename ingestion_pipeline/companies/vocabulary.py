"""Technologies as data: how each is called, written, and to which group of a stack it belongs.

One list for companies and listings: `analysis/technologies.py` looks for those of the five groups
on a company's pages, `matching/terms.py` for what a profile and a listing name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

LANGUAGES = "languages"
FRONTEND = "frontend"
INFRASTRUCTURE = "infrastructure"
DATABASES = "databases"
MACHINE_LEARNING = "machine_learning"


@dataclass(frozen=True, slots=True, kw_only=True)
class Technology:
    """One technology.

    Of the five groups of a stack, `pattern` is how it is written, capitals and all, and `as_word`
    how where it is also a common word and needs its surroundings. `also` are other names of it in
    small letters. `is_asked_for` where listings ask for it as a skill.
    """

    name: str
    group: str | None = None
    pattern: str | None = None
    as_word: str | None = None
    also: tuple[str, ...] = ()
    is_asked_for: bool = True


def _one(
    name: str,
    group: str | None = None,
    pattern: str | None = None,
    *also: str,
    as_word: str | None = None,
    is_asked_for: bool = True,
) -> Technology:
    return Technology(
        name=name,
        group=group,
        pattern=pattern,
        as_word=as_word,
        also=also,
        is_asked_for=is_asked_for,
    )


_STACK = (
    _one("Python", LANGUAGES, "[Pp]ython"),
    _one("Java", LANGUAGES, "Java"),
    _one("JavaScript", LANGUAGES, "[Jj]ava[Ss]cript", "js"),
    _one("TypeScript", LANGUAGES, "[Tt]ype[Ss]cript", "ts"),
    _one("Go", LANGUAGES, "[Gg]olang", "golang", as_word="Go"),
    _one("Rust", LANGUAGES, "[Rr]ust[Ll]ang", as_word="Rust"),
    _one("Ruby", LANGUAGES, "Ruby on Rails", as_word="Ruby"),
    _one("C++", LANGUAGES, r"[Cc]\+\+(?:[0-9]{2})?"),
    _one(
        "React",
        FRONTEND,
        r"[Rr]eact(?:\.?[Jj][Ss])|React Native",
        *("react.js", "reactjs"),
        as_word="React",
    ),
    _one("Vue", FRONTEND, r"Vue(?:\.?[Jj][Ss])?", "vue.js", "vuejs"),
    _one("Angular", FRONTEND, r"Angular(?:JS|\.js)", as_word="Angular"),
    _one("Svelte", FRONTEND, "Svelte(?:Kit|JS)", as_word="Svelte"),
    _one("AWS", INFRASTRUCTURE, "AWS|Amazon Web Services", "amazon web services"),
    _one("GCP", INFRASTRUCTURE, "GCP|Google Cloud(?: Platform)?", "google cloud"),
    _one("Azure", INFRASTRUCTURE, "Microsoft Azure|(?<!d')(?<!d\u2019)Azure"),
    _one("Docker", INFRASTRUCTURE, "Docker"),
    _one("Kubernetes", INFRASTRUCTURE, "[Kk]ubernetes|[Kk]8[Ss]", "k8s"),
    _one("PostgreSQL", DATABASES, "[Pp]ostgre(?:s|SQL|sql)", "postgres"),
    _one("MySQL", DATABASES, "[Mm]y[Ss][Qq][Ll]"),
    _one("MongoDB", DATABASES, "[Mm]ongo ?[Dd][Bb]"),
    _one("Redis", DATABASES, "[Rr]edis"),
)
_LEARNING = (
    _one(
        "machine learning",
        MACHINE_LEARNING,
        "[Mm]achine[- ][Ll]earning|ML|maschinelle[sn]? Lernen",
        "ml",
        is_asked_for=False,
    ),
    _one(
        "artificial intelligence",
        MACHINE_LEARNING,
        r"AI|A\.I\.|[Aa]rtificial [Ii]ntelligence|Künstliche Intelligenz",
        is_asked_for=False,
    ),
    _one(
        "deep learning",
        MACHINE_LEARNING,
        "[Dd]eep[- ][Ll]earning|[Nn]eural [Nn]etworks?",
        is_asked_for=False,
    ),
    _one(
        "language models",
        MACHINE_LEARNING,
        "LLMs?|[Ll]arge [Ll]anguage [Mm]odels?",
        is_asked_for=False,
    ),
    _one(
        "natural language processing",
        MACHINE_LEARNING,
        "NLP|[Nn]atural [Ll]anguage [Pp]rocessing",
        is_asked_for=False,
    ),
    _one("computer vision", MACHINE_LEARNING, "[Cc]omputer [Vv]ision", is_asked_for=False),
    _one("TensorFlow", MACHINE_LEARNING, "[Tt]ensor[Ff]low"),
    _one("PyTorch", MACHINE_LEARNING, "[Pp]y[Tt]orch"),
)
_OTHERS = (
    *map(_one, ("C#", "PHP", "Scala", "Kotlin", "Swift", "Elixir", "R", "Django", "Flask")),
    *map(_one, ("FastAPI", "Rails", "Spring Boot", ".NET", "Elasticsearch", "Cassandra")),
    *map(_one, ("Snowflake", "BigQuery", "Databricks", "Kafka", "Spark", "Airflow", "Dagster")),
    *map(_one, ("dbt", "Terraform", "Ansible", "GraphQL", "gRPC")),
    _one("Node.js", None, None, "nodejs", "node js"),
    _one("CI/CD", None, None, "ci / cd"),
)
VOCABULARY = (*_STACK, *_LEARNING, *_OTHERS)

# The five groups, by the name in small letters.
STACK: Mapping[str, Technology] = MappingProxyType(
    {one.name.lower(): one for one in VOCABULARY if one.group}
)
# What listings ask for: of these, those that a profile lacks are missing.
ASKED_FOR = tuple(one.name for one in VOCABULARY if one.is_asked_for)


# By each name in small letters the others that it is looked for by.
OTHER_NAMES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {one.name.lower(): one.also for one in VOCABULARY if one.also} | {"postgres": ("postgresql",)}
)
_NAMES = {other: one.name.lower() for one in VOCABULARY for other in one.also}


def one_name(name: str) -> str:
    """The name in small letters by which we know it: Golang is go, K8s kubernetes."""
    small = name.casefold()
    return _NAMES.get(small, small)
