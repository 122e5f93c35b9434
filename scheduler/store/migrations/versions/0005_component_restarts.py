"""Reservations count restarts by component too."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

_TEXT = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    """Add a column that says in every row that none was restarted; no row is rewritten, there may be a million."""
    op.add_column("reservations", sa.Column("component_restarts", _TEXT, nullable=True))
