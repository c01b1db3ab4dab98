"""The commands of the core: one module for each group, imported when one of them runs."""
