"""How commands print: texts, JSON, colours, progress."""
