"""Puts the hooks of treesnap into the settings of hosts, and takes them out again."""
