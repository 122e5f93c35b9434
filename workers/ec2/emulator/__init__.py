"""An EC2 to try Leasehold on, without an account: moto's server behind a layer of our own.

The layer adds what moto lacks and launching depends on: idempotent client tokens, time to boot and to end,
lag, limits, injected errors, lost answers and interruptions, and a log that tests take as the outside witness.
docs/reference/emulator.md tells how to steer it. One emulator a process: moto's state is the process's. Calls to other
services of AWS (SQS, EventBridge, STS) reach moto as they are.
"""

from workers.imports import without_collecting

with without_collecting():
    from workers.ec2.emulator.server import EmulatorServer, make_server, run_emulator
    from workers.ec2.emulator.settings import EmulatorSettings, FaultRule

__all__ = ["EmulatorServer", "EmulatorSettings", "FaultRule", "make_server", "run_emulator"]
