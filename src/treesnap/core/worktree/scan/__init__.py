"""Reading a live tree: from what is there to trees of entries."""
