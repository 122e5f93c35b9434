"""EC2 behind the `Fleet` port: boto3 calls, the table of errors, user data, and an emulator to try it on."""

from typing import Final

EMULATOR_SECRET_VARIABLE: Final = "EC2_EMULATOR_SECRET"  # noqa: S105 - a name
"""The emulator's secret. A variable, since every user of the host can read a command line. With `LEASEHOLD_` before it
every other command would refuse it as an unknown setting.
"""
