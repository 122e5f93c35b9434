"""EC2 as the implementation of the port `Fleet`: boto3 calls, the categories of errors, and user data."""

from typing import Final

EMULATOR_SECRET_VARIABLE: Final = "EC2_EMULATOR_SECRET"  # noqa: S105 - a name
"""Name of the environment variable with the secret of the EC2 emulator. The secret is not in the command line, because
every user of the host could read it there.

The name has no `LEASEHOLD_` prefix, because other commands would refuse it as an unknown setting.
"""
