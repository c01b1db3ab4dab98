"""Frameworks for agents: a snapshot before each prompt and each tool, one module per framework."""
