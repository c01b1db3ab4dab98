"""Reading what was captured: lists, logs, differences, searches, archives."""
