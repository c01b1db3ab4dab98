"""The commands of remotes."""
