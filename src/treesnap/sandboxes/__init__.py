"""Sandboxes of agents: checkpoints before their commands, and the history handed out to the host.

Read first: ``recording``, what happens before a command; then ``handover``, how the history comes
to the host. A module per provider says how its sandboxes run commands and send files.
"""
