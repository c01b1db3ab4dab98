"""Where objects and snapshots live; knows nothing of working trees."""
