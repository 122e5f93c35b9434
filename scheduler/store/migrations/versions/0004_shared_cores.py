"""Leases say how many cpus of their slot they may use."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add a column that says in every row that a lease may use its own cpus."""
    # Anew, so that the schema reads as a fresh one does.
    with op.batch_alter_table("leases", recreate="always") as leases:
        leases.add_column(sa.Column("cores", sa.Double(), nullable=True))
