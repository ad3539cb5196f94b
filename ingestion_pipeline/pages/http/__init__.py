"""One HTTP request: guarded transport, limits, conditional requests, secrets."""
