"""Agents: what their hosts tell while they work, and snapshots that take their work back."""
