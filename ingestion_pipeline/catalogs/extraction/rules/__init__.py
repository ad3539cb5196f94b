"""Rules that find records: layout, labels, tables, embedded data, API answers."""
