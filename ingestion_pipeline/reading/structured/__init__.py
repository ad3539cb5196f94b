"""Structured data: feeds, sitemaps, JSON, JSON-LD and microdata, items by selectors."""
