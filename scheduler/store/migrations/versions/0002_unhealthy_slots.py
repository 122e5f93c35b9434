"""Revision 0002: slots count failed probes and unconfirmed leases in a row. A launch back-off (hold) counts the failed
boots of a pool.
"""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Rename one column of the slots and add another one. Both are 0 in every row."""
    with op.batch_alter_table("slots") as slots:
        slots.alter_column("failed_boots", new_column_name="failed_probes")
        slots.add_column(sa.Column("unconfirmed", sa.BigInteger(), nullable=False, server_default="0"))
    # Only the existing rows needed the default; the program always writes the column.
    with op.batch_alter_table("slots") as slots:
        slots.alter_column("unconfirmed", server_default=None)
