"""HTML: safe parsing, visible text, links, Markdown, head, pagination."""
