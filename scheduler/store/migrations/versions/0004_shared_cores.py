"""Leases have the number of cpus of their slot that they may use."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add a column whose value in every row means that a lease may use its own cpus."""
    # The table is made again, so that the schema has the same text as in a new database.
    with op.batch_alter_table("leases", recreate="always") as leases:
        leases.add_column(sa.Column("cores", sa.Double(), nullable=True))
