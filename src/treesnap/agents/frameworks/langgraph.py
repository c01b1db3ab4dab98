"""LangGraph: files that travel in time with the checkpoints of a thread.

The state at a checkpoint names the snapshot of its files. A node of the middleware that runs from
a checkpoint captures the files of that one, and the next checkpoint names them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any, TypeAlias

from treesnap.agents.hosts.base import as_name
from treesnap.agents.rewind import RewindRequest
from treesnap.agents.rewind import rewind as rewind_session
from treesnap.agents.sessions import agent_sessions
from treesnap.core.features import brought_by
from treesnap.core.handle import Handle
from treesnap.core.model.errors import NotFound, quoted
from treesnap.core.model.results import RestoreResult

with brought_by("langchain"):
    from langchain_core.runnables import RunnableConfig
    from langgraph.checkpoint.base import BaseCheckpointSaver
    from langgraph.constants import START
    from langgraph.pregel import Pregel
    from langgraph.types import StateSnapshot

Graph: TypeAlias = "Pregel[Any, Any, Any, Any]"

HOST = "langchain"
"""The host of the steps."""
KEY = "treesnap_snapshot"
"""Where the state names the snapshot; empty if the files were not captured."""
_MIDDLEWARE = "SnapshotMiddleware"
_CAPTURING = {
    START,
    *(f"{_MIDDLEWARE}.{node}" for node in ("before_agent", "before_model", "after_agent")),
}
"""Nodes that capture the files of the checkpoint from which they run, or lead to such a node."""


def rewind(
    handle: Handle, graph: Graph, config: RunnableConfig, *, overwrites: bool = False
) -> RestoreResult:
    """Makes the files as they were at a checkpoint, by default the newest one of a thread.

    Then ``graph.invoke(None, config)`` goes on from there. What others changed since the agent's
    last turn is kept and listed as a conflict, unless it ``overwrites``; ``handle.undo()`` takes
    all of it back. Reads the history of the thread. Raises NotFound for a checkpoint whose files
    were not captured, or whose snapshot is deleted, and what :meth:`treesnap.Handle.restore` does.
    """
    states = list(graph.get_state_history(_thread(config)))
    return _restored(handle, states, config, overwrites=overwrites)


async def arewind(
    handle: Handle, graph: Graph, config: RunnableConfig, *, overwrites: bool = False
) -> RestoreResult:
    """Like :func:`rewind`, with an asynchronous checkpointer."""
    states = [state async for state in graph.aget_state_history(_thread(config))]
    return await asyncio.to_thread(_restored, handle, states, config, overwrites=overwrites)


def delete_thread(handle: Handle, saver: BaseCheckpointSaver[Any], thread_id: str) -> None:
    """Deletes a thread and its snapshots, but for pinned ones; after a crash, call it again."""
    saver.delete_thread(thread_id)
    _delete_snapshots(handle, thread_id)


async def adelete_thread(handle: Handle, saver: BaseCheckpointSaver[Any], thread_id: str) -> None:
    """Like :func:`delete_thread`, with an asynchronous checkpointer."""
    await saver.adelete_thread(thread_id)
    await asyncio.to_thread(_delete_snapshots, handle, thread_id)


def _thread(config: RunnableConfig) -> RunnableConfig:
    """Returns the configuration without the checkpoint in it."""
    configurable = config.get("configurable", {})
    kept = {name: value for name, value in configurable.items() if name != "checkpoint_id"}
    return {**config, "configurable": kept}


def _restored(
    handle: Handle, states: Sequence[StateSnapshot], config: RunnableConfig, *, overwrites: bool
) -> RestoreResult:
    configurable = config.get("configurable", {})
    snapshot_id = _snapshot_id(states, configurable.get("checkpoint_id"))
    session_id = as_name(str(configurable["thread_id"]))
    if session_id not in {session.id for session in agent_sessions(handle.context)}:
        return handle.restore(snapshot_id)  # the thread is a copy of another
    request = RewindRequest(snapshot_id, session_id, overwrites=overwrites)
    return rewind_session(handle.context, request).restore


def _snapshot_id(states: Sequence[StateSnapshot], checkpoint_id: str | None) -> str:
    """Returns the snapshot of a checkpoint, or of the newest one, from a thread's history."""
    state = next((item for item in states if checkpoint_id in (None, _id(item.config))), None)
    while state is not None and not _CAPTURING.isdisjoint(state.next):
        children = [item for item in states if _id(item.parent_config) == _id(state.config)]
        state = children[-1] if children else None  # the first run from there, before any fork
    snapshot_id = state.values.get(KEY) if state is not None else None
    if not snapshot_id:
        which = "the thread" if checkpoint_id is None else f"the checkpoint {quoted(checkpoint_id)}"
        raise NotFound(f"The files at {which} were not captured")
    return str(snapshot_id)


def _id(config: RunnableConfig | None) -> str | None:
    return (config or {}).get("configurable", {}).get("checkpoint_id")


def _delete_snapshots(handle: Handle, thread_id: str) -> None:
    for session in agent_sessions(handle.context):
        if session.id == as_name(str(thread_id)):
            made = [step.snapshot for step in session.steps if step.host == HOST]
            handle.delete(*(snapshot.id for snapshot in made if not snapshot.pinned))
