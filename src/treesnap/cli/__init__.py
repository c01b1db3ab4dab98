"""The command line: parses, calls one method of the library, renders."""
