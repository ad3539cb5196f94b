"""Technologies as data: names, spellings, and the group of the stack each belongs to.

One list for companies and listings: `analysis/facts.py` finds those of the five groups on a
company's pages, `matching/terms.py` what a profile and a listing name.
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

    For the five groups of a stack, `pattern` is its case-sensitive spelling, and `as_word` the
    spelling that is also a common word and needs context. `also` are other names in lower case.
    `is_required_skill` if listings require it as a skill.
    """

    name: str
    group: str | None = None
    pattern: str | None = None
    as_word: str | None = None
    also: tuple[str, ...] = ()
    is_required_skill: bool = True


def _technology(
    name: str,
    group: str | None = None,
    pattern: str | None = None,
    *also: str,
    as_word: str | None = None,
    is_required_skill: bool = True,
) -> Technology:
    return Technology(
        name=name, group=group, pattern=pattern, as_word=as_word, also=also, is_required_skill=is_required_skill
    )


_STACK = (
    _technology("Python", LANGUAGES, "[Pp]ython"),
    _technology("Java", LANGUAGES, "Java"),
    _technology("JavaScript", LANGUAGES, "[Jj]ava[Ss]cript", "js"),
    _technology("TypeScript", LANGUAGES, "[Tt]ype[Ss]cript", "ts"),
    _technology("Go", LANGUAGES, "[Gg]olang", "golang", as_word="Go"),
    _technology("Rust", LANGUAGES, "[Rr]ust[Ll]ang", as_word="Rust"),
    _technology("Ruby", LANGUAGES, "Ruby on Rails", as_word="Ruby"),
    _technology("C++", LANGUAGES, r"[Cc]\+\+(?:[0-9]{2})?"),
    _technology("React", FRONTEND, r"[Rr]eact(?:\.?[Jj][Ss])|React Native", *("react.js", "reactjs"), as_word="React"),
    _technology("Vue", FRONTEND, r"Vue(?:\.?[Jj][Ss])?", "vue.js", "vuejs"),
    _technology("Angular", FRONTEND, r"Angular(?:JS|\.js)", as_word="Angular"),
    _technology("Svelte", FRONTEND, "Svelte(?:Kit|JS)", as_word="Svelte"),
    _technology("AWS", INFRASTRUCTURE, "AWS|Amazon Web Services", "amazon web services"),
    _technology("GCP", INFRASTRUCTURE, "GCP|Google Cloud(?: Platform)?", "google cloud"),
    _technology("Azure", INFRASTRUCTURE, "Microsoft Azure|(?<!d')(?<!d\u2019)Azure"),
    _technology("Docker", INFRASTRUCTURE, "Docker"),
    _technology("Kubernetes", INFRASTRUCTURE, "[Kk]ubernetes|[Kk]8[Ss]", "k8s"),
    _technology("PostgreSQL", DATABASES, "[Pp]ostgre(?:s|SQL|sql)", "postgres"),
    _technology("MySQL", DATABASES, "[Mm]y[Ss][Qq][Ll]"),
    _technology("MongoDB", DATABASES, "[Mm]ongo ?[Dd][Bb]"),
    _technology("Redis", DATABASES, "[Rr]edis"),
)
_LEARNING = (
    _technology(
        "machine learning",
        MACHINE_LEARNING,
        "[Mm]achine[- ][Ll]earning|ML|maschinelle[sn]? Lernen",
        "ml",
        is_required_skill=False,
    ),
    _technology(
        "artificial intelligence",
        MACHINE_LEARNING,
        r"AI|A\.I\.|[Aa]rtificial [Ii]ntelligence|Künstliche Intelligenz",
        is_required_skill=False,
    ),
    _technology(
        "deep learning", MACHINE_LEARNING, "[Dd]eep[- ][Ll]earning|[Nn]eural [Nn]etworks?", is_required_skill=False
    ),
    _technology("language models", MACHINE_LEARNING, "LLMs?|[Ll]arge [Ll]anguage [Mm]odels?", is_required_skill=False),
    _technology(
        "natural language processing",
        MACHINE_LEARNING,
        "NLP|[Nn]atural [Ll]anguage [Pp]rocessing",
        is_required_skill=False,
    ),
    _technology("computer vision", MACHINE_LEARNING, "[Cc]omputer [Vv]ision", is_required_skill=False),
    _technology("TensorFlow", MACHINE_LEARNING, "[Tt]ensor[Ff]low"),
    _technology("PyTorch", MACHINE_LEARNING, "[Pp]y[Tt]orch"),
)
_OTHERS = (
    *map(_technology, ("C#", "PHP", "Scala", "Kotlin", "Swift", "Elixir", "R", "Django", "Flask")),
    *map(_technology, ("FastAPI", "Rails", "Spring Boot", ".NET", "Elasticsearch", "Cassandra")),
    *map(_technology, ("Snowflake", "BigQuery", "Databricks", "Kafka", "Spark", "Airflow", "Dagster")),
    *map(_technology, ("dbt", "Terraform", "Ansible", "GraphQL", "gRPC")),
    _technology("Node.js", None, None, "nodejs", "node js"),
    _technology("CI/CD", None, None, "ci / cd"),
)
VOCABULARY = (*_STACK, *_LEARNING, *_OTHERS)

# The technologies of the five groups, by lower-case name.
STACK: Mapping[str, Technology] = MappingProxyType(
    {technology.name.lower(): technology for technology in VOCABULARY if technology.group}
)
# Skills that listings require; those a profile lacks count as missing.
REQUIRED_SKILLS = tuple(technology.name for technology in VOCABULARY if technology.is_required_skill)


# Other names to search for, by lower-case name.
OTHER_NAMES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {technology.name.lower(): technology.also for technology in VOCABULARY if technology.also}
    | {"postgres": ("postgresql",)}
)
_NAMES = {other: technology.name.lower() for technology in VOCABULARY for other in technology.also}


def canonical_name(name: str) -> str:
    """Return the canonical lower-case name: Golang is go, K8s is kubernetes."""
    small = name.casefold()
    return _NAMES.get(small, small)
