"""Revision 0026: the first planned start of a protected reservation."""

import sqlalchemy as sa
from alembic import op

revision = "0026"
down_revision = "0025"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column, empty: older protected reservations get their first planned start in a later tick."""
    op.add_column("reservations", sa.Column("planned_start", sa.Double(), nullable=True))
