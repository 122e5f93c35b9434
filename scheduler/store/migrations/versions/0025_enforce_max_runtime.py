"""Revision 0025: whether an account ends leases at the `max_runtime` of their reservations."""

import sqlalchemy as sa
from alembic import op

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column; processes of the version before write rows without it."""
    op.add_column("accounts", sa.Column("enforce_max_runtime", sa.Boolean(), server_default=sa.false(), nullable=False))
