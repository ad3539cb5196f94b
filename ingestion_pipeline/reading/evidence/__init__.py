"""Evidence: whether and where a text proves a value."""
