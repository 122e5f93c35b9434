"""How many generated cases a test plays: few in each run of the suite, which draws others each time, and
`EXAMPLES` times as many if that variable is set.
"""

import os
from typing import Final

TIMES: Final = int(os.environ.get("EXAMPLES", "1"))
