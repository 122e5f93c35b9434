"""Advice that is right or none: over generated fleets, each offered change leads to a lease in `simulate`."""

from tests.generated import draw_some
from tests.rules.explain.advice import Count

ALWAYS = (20924, 25246, 28020, 29672, 30538, 35962)
"""Beside a sample; `python -m tests.rules.explain.advice` plays 2,000. In 20924 a lease at once takes the last but one
use of a machine, so that an earlier gang takes a machine that the change would give to the reservation. In 25246 others
take the last slot during a wait. In 28020 a stopped machine is ready before launched ones. In 29672 a schedule
opens while machines boot. In 30538 two leases at once take the last uses of a machine. In 35962 machines are ready
within a wait and leased to others, and more are launched for the next.
"""


def test_each_change_that_is_offered_leads_to_a_lease_and_names_only_what_exists() -> None:
    count, seeds = Count(), [*draw_some(range(1, 41), 12), *ALWAYS]
    faults = [fault for seed in seeds for fault in count.find_faults(seed)]
    assert faults == []
    assert count.kinds.total() > len(seeds)
    assert {"max_slots", "hold", "cordon", "offering", "overtaking"} <= {
        part for kind in count.kinds for part in kind.split(" and ")
    }
