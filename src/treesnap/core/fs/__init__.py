"""The one seam to the outside world: every system call that matters goes through it."""
