"""EC2 behind the `Fleet` port: boto3 calls, the categories of errors, user data, and an emulator for trials."""

from typing import Final

EMULATOR_SECRET_VARIABLE: Final = "EC2_EMULATOR_SECRET"  # noqa: S105 - a name
"""The environment variable with the secret of the EC2 emulator; a command line could be read by every user of the host.

The name has no `LEASEHOLD_` prefix, because other commands would refuse it as an unknown setting.
"""
