"""Keeping a store small and sound: what nothing needs goes, what is damaged is found."""
