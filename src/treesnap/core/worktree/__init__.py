"""The live tree: reading it, and changing it; knows nothing of stores."""
