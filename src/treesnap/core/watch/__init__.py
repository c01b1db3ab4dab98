"""``snap watch``: a process that watches a root, answers others, and makes snapshots."""
