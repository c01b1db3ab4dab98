"""The commands that stand in for those of other systems."""
