"""The Celery application: its settings, queues and routes, the schedule of beat, a module with the tasks of each queue,
and the dispatcher, which sends messages.
"""

import os
from typing import Final

_PREFIXES: Final = ("CELERY_", "FLOWER_")
_NAMES: Final = frozenset(
    {
        *("FORKED_BY_MULTIPROCESSING", "C_STRICT_APP", "C_WARN_APP"),
        # Options of the command `celery`, which starts Flower.
        *("APP", "BROKER_URL", "RESULT_BACKEND", "LOADER", "CONFIG_MODULE"),
    }
)

# These variables belong to other Celery applications of the user. Celery prefers them to the settings of an
# application, and reads some of them when it is imported. So they are removed before the first import of Celery.
for _name in [name for name in os.environ if name.startswith(_PREFIXES) or name in _NAMES]:
    del os.environ[_name]
