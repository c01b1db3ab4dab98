"""Snapshots by a timer of systemd, or by a line that a person gives to cron.

What a timer runs is an ordinary command, and what is written says so: it works without this
package, can be read, and can be removed by hand.

Read first: ``job``, what is written; then ``scheduler``.
"""

from treesnap.schedule.job import Job
from treesnap.schedule.scheduler import (
    RemovedSchedule,
    ScheduleChange,
    ScheduledRoot,
    Scheduler,
    TimerPlace,
    WrittenText,
)
from treesnap.schedule.times import When, parse_when

__all__ = [
    "Job",
    "RemovedSchedule",
    "ScheduleChange",
    "ScheduledRoot",
    "Scheduler",
    "TimerPlace",
    "When",
    "WrittenText",
    "parse_when",
]
