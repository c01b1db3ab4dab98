"""Measurements: a suite that compares with other tools, and experiments on single questions."""
