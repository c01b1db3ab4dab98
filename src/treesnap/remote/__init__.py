"""Sharing history through files somewhere else: what those hold, and how they are encrypted."""
