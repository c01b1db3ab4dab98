"""A watcher that runs by itself: it answers other processes, and makes snapshots."""
