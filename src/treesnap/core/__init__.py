"""The product without extras: create, restore, store, collect. Imports nothing beside itself.

Read first: ``handle``, the door of the library; then ``ops.create`` and ``ops.restore``.

Whatever uses treesnap imports this package, also what does not begin with ``import treesnap``: a
notebook, a framework, a sandbox. So it is refused here where it cannot work.
"""

from treesnap import unsupported

_problem = unsupported()
if _problem is not None:
    raise ImportError(_problem, name="treesnap")
