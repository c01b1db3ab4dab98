"""What all parts of the core speak of: errors, events, identities, paths, entries, results."""
