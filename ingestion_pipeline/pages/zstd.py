"""zstd of the standard library (from Python 3.14 on), or its backport, which has the same names."""

from __future__ import annotations

import sys

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

__all__ = ["zstd"]
