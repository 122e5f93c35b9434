"""One tick, as a page of prose: what is, what is due, who goes where, and what machines that takes.

Every step sees what the steps before it decided, because all of them spend from one draft: a scratch copy of
the view. Nothing is given out twice within a tick, and nothing is written: carrying the plan out is
`operations/commit.py`'s, and each decision is looked at again there, on fresh rows.
"""

from scheduler.model.decisions import Plan
from scheduler.model.rules import Rules
from scheduler.model.view import View
from scheduler.policy.charge import charge
from scheduler.policy.collector import with_resting_collector
from scheduler.policy.draft import Draft
from scheduler.policy.expire import expire
from scheduler.policy.heal import heal
from scheduler.policy.keep import keep
from scheduler.policy.launch import launch, launch_for_elastic
from scheduler.policy.limits import Limits
from scheduler.policy.order import order
from scheduler.policy.place import place
from scheduler.policy.recall import keep_in_mind, recall
from scheduler.policy.release import count_withheld, release
from scheduler.policy.share import share
from scheduler.policy.shrink import shrink
from scheduler.policy.wake import wake


@with_resting_collector
def plan(view: View, rules: Rules, now: float) -> Plan:
    """The decisions of one tick, in the order in which they were made, and why the others wait.

    The same view, rules and now (seconds) give the same plan, in whatever order the view's rows came.
    Source: the autoscaler's tick; its order is kept.
    """
    known = recall(view, rules, now)
    if known is not None:
        return known
    draft = Draft(view, rules, now)
    expire(draft)  # reservations whose time is over give back what they hold
    heal(draft)  # interrupted, lost and stuck slots; restarts that are due
    charge(draft)  # quota accounts earn, and pay for what ran
    queue = order(draft)  # who waits, the first one first
    limits = Limits(draft)  # what keeps launches back: max_slots and holds
    unplaced = place(draft, queue, limits)  # leases on what is ready
    launch(draft, unplaced, limits)  # machines for those who found no room, less what is on its way
    launch_for_elastic(draft, limits)  # the same for those who could use more, where their pool says so
    count_withheld(draft, limits)  # whom quota or max_slots keep from a launch
    keep(draft, limits)  # the minimum and the warm reserve of each pool
    shrink(draft)  # what has been idle for too long
    release(draft)  # what is unneeded, where quota or max_slots keeps back a launch
    share(draft)  # the spare cores of each slot among those who are on it by now
    wake(draft)  # what all this makes fall due, and when
    return keep_in_mind(view, rules, now, draft.finish(queue))
