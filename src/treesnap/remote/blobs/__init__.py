"""Named immutable files somewhere else: in a bucket, or in a directory on another disk.

Knows nothing of snapshots, packs or encryption.
"""
