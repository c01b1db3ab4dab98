"""Agents: what their hosts tell while they work, and snapshots that take their work back.

Read first: ``hosts.base``, what a host tells; then ``hook``, what is captured, and ``rewind``.
"""
