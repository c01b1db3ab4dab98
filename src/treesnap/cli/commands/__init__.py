"""The commands of the core: one module for each group, imported when one of them runs."""

from __future__ import annotations

from treesnap.core.features import Commands, with_features

_OF_THE_CORE: Commands = {
    "Everyday": {
        "create": ("treesnap.cli.commands.create", "Capture the root, or only PATHs of it."),
        "list": ("treesnap.cli.commands.browse", "List the root's snapshots, newest first."),
        "log": (
            "treesnap.cli.commands.log",
            "Show the history of the root or of PATH, newest first.",
        ),
        "status": (
            "treesnap.cli.commands.changes",
            "Show what changed since the newest snapshot, or since REF.",
        ),
        "diff": (
            "treesnap.cli.commands.changes",
            "Show changes between two snapshots, or a snapshot and the live tree.",
        ),
        "restore": ("treesnap.cli.commands.restore", "Restore a snapshot, or only PATHs of it."),
        "revert": (
            "treesnap.cli.commands.merges",
            "Undo what happened between two snapshots, and keep everything since.",
        ),
        "adopt": (
            "treesnap.cli.commands.merges",
            "Bring what was done in the fork DIR into the root that it was forked from.",
        ),
        "undo": ("treesnap.cli.commands.restore", "Undo the newest restore."),
        "redo": ("treesnap.cli.commands.restore", "Undo the newest undo."),
        "run": (
            "treesnap.cli.commands.run",
            "Run a command, and roll back what it did if it fails.",
        ),
        "fork": (
            "treesnap.cli.commands.merges",
            "Make working copies of a snapshot that share its blocks.",
        ),
    },
    "History": {
        "show": ("treesnap.cli.commands.browse", "Show the metadata of a snapshot."),
        "ls": ("treesnap.cli.commands.browse", "List a directory of a snapshot."),
        "cat": ("treesnap.cli.commands.browse", "Print a file of a snapshot."),
        "find": ("treesnap.cli.commands.browse", "Find paths in all snapshots, or in one."),
        "grep": (
            "treesnap.cli.commands.grep",
            "Print the lines of files in snapshots that match a pattern.",
        ),
        "blame": (
            "treesnap.cli.commands.blame",
            "Show which snapshot brought each line of a file.",
        ),
        "archive": (
            "treesnap.cli.commands.archive",
            "Write a snapshot, or one path of it, to a tar archive.",
        ),
        "import": (
            "treesnap.cli.commands.archive",
            "Make a snapshot of a tar archive or of another directory.",
        ),
        "describe": ("treesnap.cli.commands.snapshots", "Give a snapshot another label."),
        "tag": ("treesnap.cli.commands.snapshots", "Set tags of a snapshot, or remove them."),
        "pin": ("treesnap.cli.commands.snapshots", "Protect a snapshot from deletion."),
        "unpin": ("treesnap.cli.commands.snapshots", "End the protection of a snapshot."),
        "delete": (
            "treesnap.cli.commands.snapshots",
            "Delete snapshots; 'snap gc' then frees their space.",
        ),
    },
    "Space and maintenance": {
        "prune": (
            "treesnap.cli.commands.snapshots",
            "Delete the root's snapshots that no rule keeps.",
        ),
        "gc": (
            "treesnap.cli.commands.maintenance",
            "Free the space of everything that no snapshot needs.",
        ),
        "stats": (
            "treesnap.cli.commands.maintenance",
            "Show the sizes of the store, its roots, and this root's history.",
        ),
        "du": (
            "treesnap.cli.commands.maintenance",
            "Show the space that a snapshot takes, by path.",
        ),
        "verify": ("treesnap.cli.commands.maintenance", "Check the store, and repair it if asked."),
        "doctor": (
            "treesnap.cli.commands.maintenance",
            "Show interrupted work in all roots, and what becomes of it.",
        ),
        "config": (
            "treesnap.cli.commands.config",
            "Show or change the settings of the store, or of one root.",
        ),
        "store": (
            "treesnap.cli.commands.store",
            "Show where the store is, copy it, or move it.",
        ),
        "root": ("treesnap.cli.commands.root", "List, move and forget the roots of a store."),
        "completion": (
            "treesnap.cli.completion",
            "Print a script with which a shell completes commands, options and REFs.",
        ),
    },
    "Automation": {
        "watch": (
            "treesnap.cli.commands.watch",
            "Watch the root for changes, and make automatic snapshots if asked.",
        ),
    },
}
COMMANDS = with_features(_OF_THE_CORE)
"""The commands by section of the help, each with its module and the first sentence of its help."""
