"""Changing a live tree: building aside, then steps of which each can be undone."""
