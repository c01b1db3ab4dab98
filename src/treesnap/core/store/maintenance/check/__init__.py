"""Finding damage in a store, and repairing it."""
