"""What to do next about each error and warning, in a sentence.

Commands in it begin with ``snap``, also for those who use the library: a person may type them, and
a program may show them.
"""

from __future__ import annotations

NO_SNAPSHOTS = "'snap create' takes the first one"
"""Of ``snapshot-not-found``, where a root has none at all."""
HINTS: dict[str, str | None] = {
    "store-unavailable": "name another place with --store DIR or $SNAP_STORE",
    "state-unavailable": "name another place with $XDG_STATE_HOME",
    "not-permitted": (
        "run it as the owner of the path, or 'sudo chown' it; 'snap restore REF --to DIR' "
        "writes elsewhere"
    ),
    "no-timers": "--cron prints a line for a crontab instead",
    "ran-together": "--together reverts all of it, --dry-run shows what that changes",
    "operation-failed": None,
    "too-many-paths": (
        "name a PATH to take a part; a snapshot may be made to exhaust memory and time, unless "
        "you know it"
    ),
    "remote-unreachable": (
        "check the address of the remote and the network, or whether its disk is connected"
    ),
    "remote-credentials": (
        "set the credentials that the remote asks for, for a bucket on S3 AWS_ACCESS_KEY_ID "
        "and AWS_SECRET_ACCESS_KEY, or renew them; over ssh, a key that 'ssh HOST' accepts"
    ),
    "remote-host-unknown": (
        "'ssh HOST' shows the key of the machine; accept it there, if it is the right one"
    ),
    "remote-program-missing": "install the program, or correct what names it",
    "remote-denied": "ask the owner of the remote for the permission",
    "remote-wrong-region": "name the region of the bucket: s3://BUCKET?region=REGION",
    "remote-clock": "set the clock of this machine",
    "remote-missing": (
        "make the bucket, or connect the disk; the address may also have a typing mistake"
    ),
    "remote-throttled": "run the command again later",
    "remote-failed": None,
    "invalid-argument": None,
    "invalid-config": "correct the file, or remove it to use the defaults",
    "invalid-plan": "correct the plan; nothing was run",
    "invalid-settings": "correct the file, which belongs to the host of the agent",
    "invalid-archive": "nothing was imported; check how the archive was made or copied",
    "ambiguous-ref": "give more characters of the id",
    "dangerous-root": "name another directory with -C DIR, or insist with --force",
    "foreign-owner": (
        "another user could say what is restored, and where; if you trust that user, name the "
        "directory: 'snap config safe-directories DIR', or in SNAP_SAFE_DIRECTORIES"
    ),
    "name-taken": "choose another name, or delete the snapshot that has it",
    "root-taken": "'snap root forget' removes one of the two histories",
    "names-collide": "restore with --to on a file system on which they are two names",
    "history-kept": "--force removes them as well",
    "pinned": "'snap unpin REF' ends the protection",
    "unsaved-changes": "capture them: leave --no-commit-first out",
    "validation-failed": (
        "correct what it complains about, or leave --validate out to capture the tree as it is"
    ),
    "unreadable": "make it readable, or name it in .snapignore",
    "not-a-directory": "name a directory",
    "root-covered": (
        "unmount it; 'findmnt' lists what is mounted. If that is to be the root from now on, "
        "'snap create' says so"
    ),
    "not-watchable": "every command works without a watcher, and looks at everything",
    "not-mountable": (
        "name an empty directory outside of the root and the store; 'snap umount DIR' ends a "
        "mount of treesnap"
    ),
    "not-ours": "remove it or move it away yourself, then run the command again",
    "target-not-empty": "name a directory that is empty or does not exist",
    "file-exists": "choose another name, or replace it with --force",
    "not-forkable": (
        "name a new directory below one that exists, outside of the root and of the store"
    ),
    "conflict": "stop what writes there, then run the command again",
    "not-a-fork": "'snap root list' says where each fork comes from",
    "fork-replaced": "look at it with 'snap diff DIR', or adopt it with --force",
    "merge-conflict": (
        "--mine keeps these paths as they are, --theirs takes the other side, --markers writes "
        "both into texts"
    ),
    "restore-interrupted": (
        "'snap doctor' shows what it waits for, 'snap doctor --forget' gives it up; in a tree "
        "that was moved, 'snap root move OLD' finishes it"
    ),
    "restore-not-own": (
        "if you made this store yourself, and moved or copied it here, 'snap store trust' lets "
        "the next command finish the restore; 'snap doctor --forget' leaves the files as they "
        "are"
    ),
    "plan-interrupted": (
        "'snap plan resume PLAN' continues it, 'snap plan rollback PLAN' rolls it back"
    ),
    "plan-not-completed": "'snap plan resume PLAN' continues it",
    "plan-applied": "'snap restore REF' still restores any snapshot of 'snap list'",
    "feature-missing": (
        "install treesnap whole; 'snap restore REF' restores the files of a snapshot alone"
    ),
    "restore-not-allowed": (
        "'snap restore REF' restores; 'snap mcp --allow-restore' lets the model do it"
    ),
    "remote-replaced": (
        "'snap remote remove NAME' and 'snap remote add NAME URL' accept what is there now"
    ),
    "remote-set-back": (
        "find out whether a backup of it was put back; 'snap fetch REMOTE --accept-rollback' takes "
        "what is there now"
    ),
    "remote-name-taken": "choose another name, or 'snap remote remove NAME' first",
    "remote-unreliable": (
        "delete nothing there by hand; 'snap remote check' says which machines can collect"
    ),
    "remote-role": "'snap remote members list' shows the roles; an owner invites",
    "not-encrypted": "a user who can read the place can read what is stored there",
    "encryption-expected": (
        "--no-encrypt takes it as it is, if it is meant to be so; else find out who put it there, "
        "because another user may read what is pushed, and choose what is cloned"
    ),
    "nothing-in-common": (
        "'snap restore REMOTE/HISTORY' replaces the files, and 'snap undo' takes that back"
    ),
    "secret-in-use": "choose another one; 'snap remote key rotate' keeps the one in use",
    "last-key": ("'snap remote key add' adds another one; then give the secret of that one"),
    "store-not-own": (
        "'snap plan show' shows the plan; '--allow-commands' runs what it says; 'snap store "
        "trust' is for a store that you made yourself, and moved or copied here"
    ),
    "root-not-named": (
        "name the root with -C, if that is the directory to be written to; 'snap store trust' "
        "is for a store that you made yourself, and moved or copied here"
    ),
    "store-moved": "use the store at its new place, and remove what is left here",
    "store-not-trusted": (
        "take it over with 'chown -R' and 'chmod go-w', or copy what you need of it"
    ),
    "remote-locked": (
        "give the passphrase or the key of one of its key slots, for example with "
        "$TREESNAP_REMOTE_PASSPHRASE or $TREESNAP_REMOTE_KEY"
    ),
    "unsupported-format": "use the version of treesnap that made this store",
    "snapshot-not-found": "'snap list' shows the snapshots of this root",
    "other-root": (
        "name that root with -C, even if it is gone; 'snap restore ID --to DIR' needs no root"
    ),
    "remote-not-found": (
        "'snap remote list' shows the remotes, 'snap remote add NAME URL' adds one"
    ),
    "key-not-found": "'snap remote key list' shows the key slots",
    "member-not-found": "'snap remote members list' shows the machines",
    "history-not-found": (
        "'snap remote show NAME' lists the histories, 'snap push NAME' begins one"
    ),
    "path-not-found": ("'snap ls -R REF' and 'snap find PATTERN' show the paths of snapshots"),
    "unknown-path": (
        "did you mean -m LABEL? --allow-absent captures that there is nothing at a PATH"
    ),
    "plan-not-found": "'snap plan list --all' shows all plans",
    "checkpoint-not-found": "'snap plan rollback PLAN' lists the checkpoints",
    "session-not-found": (
        "'snap agent status' shows which hooks capture agents; -C DIR names another root"
    ),
    "prompt-not-found": "'snap prompts' lists the prompts of the session that worked last",
    "root-not-found": "name a directory that exists, in a command with -C DIR",
    "current-directory-gone": (
        "'cd \"$PWD\"' enters the directory that is in its place now; -C DIR names another one"
    ),
    "unknown-root": "'snap root list' shows all roots",
    "store-not-found": "'snap create' makes the store; --store DIR names another one",
    "schedule-not-found": "'snap schedule list' shows all schedules",
    "not-mounted": "'findmnt -t fuse.treesnap' lists the mounts of treesnap",
    "nothing-to-undo": "'snap restore REF' restores any snapshot of 'snap list'",
    "busy": "another command works here; --wait SECONDS waits longer for it",
    "store-damaged": (
        "'snap verify --read-data' names all damage, 'snap verify --read-data --repair' repairs "
        "what it can"
    ),
    "remote-damaged": (
        "'snap remote verify NAME --read-data' names all damage there, 'snap remote verify "
        "NAME --repair' stores again what this store has; small files 'snap remote repair NAME' "
        "does, on any machine, or with --rebuild, of what packs say"
    ),
    "no-space": "make room: 'snap delete REF...' and 'snap gc', or remove other files",
    "over-quota": (
        "'snap prune' and 'snap gc' make room; --max-size, else 'snap config max-size', sets "
        "the limit"
    ),
    "remote-full": (
        "'snap remote prune' and 'snap remote gc' make room on the remote; or raise its quota"
    ),
    "command-not-found": None,
}
"""By the code of an error; None where its message says it all."""

CLASS_HINTS: dict[str, str] = {
    "OnlyOfPaths": "'snap create' takes one; REF 'newest' names the one of other paths",
    "KeysRotated": (
        "give a newer secret; or on a machine that has one, 'snap remote key remove' the slot of "
        "this one, and 'snap remote key add' this one again"
    ),
    "HeldByMount": (
        "'snap umount DIR' ends a mount of the history; 'findmnt -t fuse.treesnap' lists them"
    ),
    "MountStopped": (
        "'kill -CONT PID' lets its process go on, 'kill -KILL PID' ends it; 'snap umount DIR' then "
        "clears what it left"
    ),
    "RemoteNotNamed": (
        "if that address is yours, 'snap config safe-remote.URL true' says so for it; 'snap store "
        "trust' is for a store that you made yourself, and moved or copied here"
    ),
}
"""By the class of an error that knows more of it than its code."""

NOT_ON_REMOTE = "'snap remote snapshots {}' shows the snapshots of this history"
NOT_AT_ADDRESS = (
    "'snap remote add NAME URL' gives the remote a name, 'snap remote snapshots NAME' then shows "
    "its snapshots"
)

WARNING_HINTS: dict[str, str] = {
    "database-log-left": (
        "move the log away before a program opens the database; a '!' rule in .snapignore captures "
        "logs with their databases"
    ),
    "root-may-have-moved": "'snap root move OLD' takes over the history of a moved root",
    "settings-ignored": "correct the file, or remove it to use the defaults",
    "stage-found": "remove it once no restore of that tree is under way",
    "restore-unfinished": "'snap doctor' shows what it waits for",
    "step-killed": (
        "'snap restore ID' goes back to that state, 'snap create' or 'snap doctor --forget' keeps "
        "this one"
    ),
    "roll-back-failed": (
        "'snap restore ID' tries again to go back to that state, 'snap create' or 'snap doctor "
        "--forget' keeps this one"
    ),
    "edits-preserved": "'snap restore REF --to DIR' writes the files of that snapshot",
    "not-converted": "'--no-textconv' runs no commands; 'snap config' shows them",
    "garbage-kept": (
        "'snap verify --repair' repairs them or moves them away, 'snap gc' collects around them"
    ),
    "remote-readable": "'chmod go-rwx' the directory, or add it with '--encrypt'",
    "remote-file-damaged": (
        "'snap remote repair' stores it again; where no copy is whole, with --rebuild, of what "
        "packs say"
    ),
    "remote-snapshot-damaged": "'snap remote verify --repair' on a machine that has it stores it",
    "invitations-ended": "'snap remote invite --writer' makes a new one for each",
    "remote-waited-for": "Ctrl-C ends the command; --retry-for says how long it waits",
    "repository-shared": (
        "do not commit in it; 'git worktree add' makes a working tree with a branch of its own"
    ),
    "snapshot-newer": "install the newest version of treesnap",
}
"""By the code of a warning, where its message does not say it all."""


def for_program(hint: str, program: str) -> str:
    """Returns a hint whose commands begin with the name that the program was called by."""
    return hint.replace("'snap ", f"'{program} ")
