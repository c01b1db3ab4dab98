"""Faces of other checkpoint systems: they translate names, and the operations do the work.

Read first: ``maker_block`` and ``maker``; ``maestro`` and ``architect`` have the calls of theirs.
"""
