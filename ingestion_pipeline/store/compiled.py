"""Statements are compiled once per process, however often a database is opened.

SQLAlchemy keeps what it compiled with the engine, and every tick of a sensor opens an engine anew:
most of what such a tick computed was the text of the same few statements. The engines of one kind
are all made in engine.py, with the same options, hence one's text is the other's.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy.engine import Dialect
from sqlalchemy.util import LRUCache

KEPT_STATEMENTS = 2000  # both databases together; the program has a few hundred of each


class CompiledOnce:
    """A cache as the option `compiled_cache` wants it, for many engines instead of one.

    SQLAlchemy's keys begin with the dialect, an object that each engine has of its own; here its
    kind takes that place: database, driver and the server's version, which may decide the text.
    """

    def __init__(self) -> None:
        self._kept: LRUCache[tuple[Any, ...], Any] = LRUCache(KEPT_STATEMENTS)

    def get(self, key: tuple[Any, ...]) -> Any:  # noqa: ANN401 - SQLAlchemy's types are private
        """What was compiled for an equal statement; None if nothing was."""
        return self._kept.get(_of_any_engine(key))

    def __setitem__(self, key: tuple[Any, ...], compiled: Any) -> None:  # noqa: ANN401
        self._kept[_of_any_engine(key)] = compiled


def _of_any_engine(key: tuple[Any, ...]) -> tuple[Any, ...]:
    dialect: Dialect = key[0]
    return (dialect.name, dialect.driver, dialect.server_version_info, *key[1:])


COMPILED = CompiledOnce()
