"""Technologies are found by whole words only."""

import json
import re
from typing import Any

import pytest

from ingestion_pipeline.companies.analysis.company_pages import technologies_in
from ingestion_pipeline.companies.job_listing import MACHINE_LEARNING, STACK
from ingestion_pipeline_tests.samples import sample


def technology_names(text: str) -> set[str]:
    return {name for names in technologies_in(text).values() for name in names}


def test_the_technology_groups_have_the_documented_sizes() -> None:
    counts = {
        group: sum(technology.group == group for technology in STACK.values())
        for group in ("languages", "frontend", "infrastructure", "databases")
    }

    assert counts == {"languages": 8, "frontend": 4, "infrastructure": 5, "databases": 4}
    assert any(technology.group == MACHINE_LEARNING for technology in STACK.values())


@pytest.mark.parametrize(
    "text",
    [
        "Send us an email, we said it long ago.",
        "Ready to go? Go to our blog. Go further with a go-to-market plan, on the go.",
        "Go-to-market lead",
        "We react quickly and trust each other; rust-proof steel. Rust never sleeps.",
        "R&D and the C-level decide. Vitamin C, Class R.",
        "Javanese gamelan, Scalable oil, paid maid, MAINTAIN, LAID, HTML and XML",
        "Ruby Smith leads our office. An angular face.",
        "info@python.example, we.react.example, acme.ai",
        "Google is a partner. Cloud nine.",
        "Mongolia, dockers, kubernetic",
    ],
)
def test_similar_words_are_not_technologies(text: str) -> None:
    assert technology_names(text) == set()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Our backend is written in Go.", {"go"}),
        ("Languages: Python, Go and Rust", {"python", "go", "rust"}),
        ("Golang, K8s", {"go", "kubernetes"}),
        ("Go developer wanted", {"go"}),
        ("TypeScript/React on AWS", {"typescript", "react", "aws"}),
        ("React components, Vue.js, AngularJS", {"react", "vue", "angular"}),
        ("JavaScript", {"javascript"}),
        ("Java 17 and C++20", {"java", "c++"}),
        ("Ruby on Rails with Postgres, MySQL, MongoDB and Redis.", {"ruby", "postgresql", "mysql", "mongodb", "redis"}),
        ("We use AI (LLMs) and machine learning", {"artificial intelligence", "language models", "machine learning"}),
        ("Google Cloud Platform, Microsoft Azure, Docker", {"gcp", "azure", "docker"}),
        ("Rust\nSvelte\nTypeScript", {"rust", "svelte", "typescript"}),
    ],
)  # fmt: skip
def test_technologies_are_found(text: str, expected: set[str]) -> None:
    assert technology_names(text) == expected


def test_a_word_next_to_machine_learning_is_not_a_technology() -> None:
    assert technology_names("AI, Go further") == {"artificial intelligence"}


def _texts(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [text for child in children for text in _texts(child)]


@pytest.mark.slow
def test_every_hit_in_the_samples_is_a_whole_word() -> None:
    """Real postings contain "email" and "ago": neither is "ai" or "go"."""
    bodies = sorted(sample("jobs").glob("*/*.json"))
    texts = [text for body in bodies for text in _texts(json.loads(body.read_bytes()))]

    assert len(texts) > 500
    for text in texts:
        names = technology_names(text)
        if "go" in names:
            assert re.search(r"\bGo\b|[Gg]olang", text)
        if "artificial intelligence" in names:
            assert re.search(r"\bAI\b|ntelligence|A\.I\.", text)
