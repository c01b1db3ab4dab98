"""Two sides of a tree since a state that both had, and merges into the root."""
