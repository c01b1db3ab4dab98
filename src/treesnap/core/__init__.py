"""The product without extras: create, restore, store, collect. Imports nothing beside itself.

Read first: ``handle``, the door of the library; then ``ops.create`` and ``ops.restore``.
"""
