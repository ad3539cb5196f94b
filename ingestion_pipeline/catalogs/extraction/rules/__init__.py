"""Extraction rules for layouts, labels, tables, embedded data and API answers."""
