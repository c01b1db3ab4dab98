"""The history of a root to look through: on a terminal, and as a page for a browser.

Read first: ``history``, the rows; then ``app``, the terminal, and ``page`` with ``activity``, its
pictures.
"""
