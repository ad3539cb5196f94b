"""Extract records from catalogue pages: entity types as data, extraction rules and records.

`read_page` tries the extraction methods from the cheapest to the costliest: embedded data,
configured selectors, layouts of known vendors, generic layout, a cheap model, then a strong one.
Which pages are read, and where records are stored, is decided elsewhere.
"""
