"""Keeping a store small and intact: deleting what nothing needs, finding and mending damage."""
