"""Faces of other checkpoint systems: they translate names, and the operations do the work."""
