"""Finding what is wrong with a store, and mending it."""
