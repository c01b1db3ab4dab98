"""The commands about agents and their hosts."""
