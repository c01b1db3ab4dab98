"""Starts the server."""

from treesnap.cli.start import main

main()
