"""Text: decoding, dates, business names, topics, fingerprints."""
