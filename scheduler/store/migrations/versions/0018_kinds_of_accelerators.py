"""Revision 0018: the catalogue of instance types counts GPUs, Neuron devices and FPGAs."""

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add three columns that are 0 until the catalogue is read again. They keep their default, so that a process of the
    version before can insert rows during a rolling upgrade.
    """
    for name in ("gpus", "neurons", "fpgas"):
        op.add_column("instance_types", sa.Column(name, sa.BigInteger(), nullable=False, server_default="0"))
