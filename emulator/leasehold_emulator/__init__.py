"""An emulated EC2 for trials without an AWS account: the server of moto (a mock of AWS), behind a middleware of our
own.

The middleware adds what moto lacks: idempotent client tokens, delays of boots and ends, changes that become visible
late, limits, injected errors, lost answers, interruptions, and a log of all calls that tests use as independent
evidence. docs/reference/emulator.md describes how to control the emulator.

A process can have one emulator, because moto's state is global. Calls to other AWS services (SQS, EventBridge, STS) go
to moto unchanged.
"""

import os

from scheduler.operations.paused_gc import PausedGC

# moto reads the user's configuration of AWS when it is imported, and ends if AWS_PROFILE names no profile.
for _name in [name for name in os.environ if name.startswith("AWS_")]:
    del os.environ[_name]
os.environ |= {"AWS_CONFIG_FILE": os.devnull, "AWS_SHARED_CREDENTIALS_FILE": os.devnull}

with PausedGC():
    from leasehold_emulator.moto_data import import_sparingly

    import_sparingly()
    from leasehold_emulator.server import EmulatorServer, make_server, run_emulator
    from leasehold_emulator.settings import EmulatorSettings, FaultRule

__all__ = ["EmulatorServer", "EmulatorSettings", "FaultRule", "make_server", "run_emulator"]
