"""Technologies as data: names, spellings, and the group of the stack each belongs to.

One list for companies and listings: `analysis/company_facts.py` finds those of the five groups on a
company's pages, `matching/terms.py` what a profile and a listing name.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

LANGUAGES = "languages"
FRONTEND = "frontend"
INFRASTRUCTURE = "infrastructure"
DATABASES = "databases"
MACHINE_LEARNING = "machine_learning"


@dataclass(frozen=True, slots=True)
class Technology:
    """One technology.

    For the five groups of a stack, `pattern` is its case-sensitive spelling, and `as_word` the
    spelling that is also a common word and needs context. `also` are other names in lower case.
    `is_required_skill` if listings require it as a skill.
    """

    name: str
    group: str | None = None
    pattern: str | None = None
    also: tuple[str, ...] = ()
    as_word: str | None = None
    is_required_skill: bool = True


_STACK = (
    Technology("Python", LANGUAGES, "[Pp]ython"),
    Technology("Java", LANGUAGES, "Java"),
    Technology("JavaScript", LANGUAGES, "[Jj]ava[Ss]cript", ("js",)),
    Technology("TypeScript", LANGUAGES, "[Tt]ype[Ss]cript", ("ts",)),
    Technology("Go", LANGUAGES, "[Gg]olang", ("golang",), as_word="Go"),
    Technology("Rust", LANGUAGES, "[Rr]ust[Ll]ang", as_word="Rust"),
    Technology("Ruby", LANGUAGES, "Ruby on Rails", as_word="Ruby"),
    Technology("C++", LANGUAGES, r"[Cc]\+\+(?:[0-9]{2})?"),
    Technology("React", FRONTEND, r"[Rr]eact(?:\.?[Jj][Ss])|React Native", ("react.js", "reactjs"), as_word="React"),
    Technology("Vue", FRONTEND, r"Vue(?:\.?[Jj][Ss])?", ("vue.js", "vuejs")),
    Technology("Angular", FRONTEND, r"Angular(?:JS|\.js)", as_word="Angular"),
    Technology("Svelte", FRONTEND, "Svelte(?:Kit|JS)", as_word="Svelte"),
    Technology("AWS", INFRASTRUCTURE, "AWS|Amazon Web Services", ("amazon web services",)),
    Technology("GCP", INFRASTRUCTURE, "GCP|Google Cloud(?: Platform)?", ("google cloud",)),
    Technology("Azure", INFRASTRUCTURE, "Microsoft Azure|(?<!d')(?<!d\u2019)Azure"),
    Technology("Docker", INFRASTRUCTURE, "Docker"),
    Technology("Kubernetes", INFRASTRUCTURE, "[Kk]ubernetes|[Kk]8[Ss]", ("k8s",)),
    Technology("PostgreSQL", DATABASES, "[Pp]ostgre(?:s|SQL|sql)", ("postgres",)),
    Technology("MySQL", DATABASES, "[Mm]y[Ss][Qq][Ll]"),
    Technology("MongoDB", DATABASES, "[Mm]ongo ?[Dd][Bb]"),
    Technology("Redis", DATABASES, "[Rr]edis"),
)
_LEARNING = (
    Technology(
        "machine learning",
        MACHINE_LEARNING,
        "[Mm]achine[- ][Ll]earning|ML|maschinelle[sn]? Lernen",
        ("ml",),
        is_required_skill=False,
    ),
    Technology(
        "artificial intelligence",
        MACHINE_LEARNING,
        r"AI|A\.I\.|[Aa]rtificial [Ii]ntelligence|Künstliche Intelligenz",
        is_required_skill=False,
    ),
    Technology(
        "deep learning", MACHINE_LEARNING, "[Dd]eep[- ][Ll]earning|[Nn]eural [Nn]etworks?", is_required_skill=False
    ),
    Technology("language models", MACHINE_LEARNING, "LLMs?|[Ll]arge [Ll]anguage [Mm]odels?", is_required_skill=False),
    Technology(
        "natural language processing",
        MACHINE_LEARNING,
        "NLP|[Nn]atural [Ll]anguage [Pp]rocessing",
        is_required_skill=False,
    ),
    Technology("computer vision", MACHINE_LEARNING, "[Cc]omputer [Vv]ision", is_required_skill=False),
    Technology("TensorFlow", MACHINE_LEARNING, "[Tt]ensor[Ff]low"),
    Technology("PyTorch", MACHINE_LEARNING, "[Pp]y[Tt]orch"),
)
_OTHERS = (
    *map(Technology, ("C#", "PHP", "Scala", "Kotlin", "Swift", "Elixir", "R", "Django", "Flask")),
    *map(Technology, ("FastAPI", "Rails", "Spring Boot", ".NET", "Elasticsearch", "Cassandra")),
    *map(Technology, ("Snowflake", "BigQuery", "Databricks", "Kafka", "Spark", "Airflow", "Dagster")),
    *map(Technology, ("dbt", "Terraform", "Ansible", "GraphQL", "gRPC")),
    Technology("Node.js", also=("nodejs", "node js")),
    Technology("CI/CD", also=("ci / cd",)),
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
