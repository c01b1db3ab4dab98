"""Compares treesnap with the tools that people use instead, and with floors, in one run.

    python -m benchmarks.suite [--quick] [--trees NAMES] [--tools NAMES] [--out DIR]

`__main__` reads the options, `session` runs what they choose. A tree comes from `trees`, what
is changed in it from `edits`, the programs from `peers`; `works` lets them do the same in turn,
`watching`, `series` and `floors` measure the rest, `inside` is what runs in a process of its
own. Numbers gather in `results`; `promises` judges them, `report` and `plots` show them.
"""
