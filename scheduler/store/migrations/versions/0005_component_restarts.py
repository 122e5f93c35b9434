"""Revision 0005: a reservation counts the restarts of each of its instances."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

_TEXT = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    """Add a column that is NULL (no restarts) in every row. No row is rewritten, because there may be a million."""
    op.add_column("reservations", sa.Column("component_restarts", _TEXT, nullable=True))
