"""Plans: steps that run in order, with checkpoints to go back to, in any directory.

Read first: ``plan``, the values; then ``runner``; ``command`` calls ``planner``.
"""

from treesnap.plans.document import Definition, parse_document
from treesnap.plans.plan import (
    Attempt,
    Checkpoint,
    CheckpointId,
    Content,
    Milestones,
    Plan,
    PlanId,
    PlanState,
    Step,
    StepProgress,
    StepState,
)
from treesnap.plans.planner import CorrectionMode, Planner, RollbackResult
from treesnap.plans.runner import PlanMonitor

__all__ = [
    "Attempt",
    "Checkpoint",
    "CheckpointId",
    "Content",
    "CorrectionMode",
    "Definition",
    "Milestones",
    "Plan",
    "PlanId",
    "PlanMonitor",
    "PlanState",
    "Planner",
    "RollbackResult",
    "Step",
    "StepProgress",
    "StepState",
    "parse_document",
]
