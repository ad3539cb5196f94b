"""Each module measures one claim as a ratio against a named peer in the same run."""
