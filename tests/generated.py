"""How many generated cases a test plays: few in each run of the suite, which draws others each time, and
`EXAMPLES` times as many if that variable is set.
"""

import os
from random import Random
from typing import Final

TIMES: Final = int(os.environ.get("EXAMPLES", "1"))


def draw_some(known: range, count: int) -> list[int]:
    """Return `TIMES` times `count` of these numbers in their order, others in each run; a build server plays the same
    each time. The numbers go on after the last one if more of them are wanted.
    """
    wanted = count * TIMES
    numbers = range(known.start, max(known.stop, known.start + wanted))
    random = Random(0) if os.environ.get("CI") else Random()
    return sorted(random.sample(numbers, wanted))
