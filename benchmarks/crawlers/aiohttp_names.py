"""The names of the site for aiohttp: all of them lead to its port."""

import socket

from aiohttp.abc import AbstractResolver, ResolveResult

from benchmarks.crawlers.job import LOOPBACK


class SiteResolver(AbstractResolver):
    """Knows one address."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def resolve(
        self,
        host: str,
        port: int = 0,  # noqa: ARG002 - aiohttp's signature
        family: socket.AddressFamily = socket.AF_INET,  # noqa: ARG002
    ) -> list[ResolveResult]:
        return [
            ResolveResult(
                hostname=host,
                host=LOOPBACK,
                port=self._port,
                family=socket.AF_INET,
                proto=0,
                flags=socket.AI_NUMERICHOST,
            )
        ]

    async def close(self) -> None:
        """It holds nothing."""
