"""What keeps a store and its roots in order: space, checks, settings, moves."""
