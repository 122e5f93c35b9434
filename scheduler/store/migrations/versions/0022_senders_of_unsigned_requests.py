"""Revision 0022: unsigned reservations have the host of their sender, by which the pending ones are counted."""

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None

_TEXT = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    """Add a column that is NULL in the present rows, and its index."""
    op.add_column("reservations", sa.Column("sender", _TEXT, nullable=True))
    unsigned = sa.text("phase = 'pending' AND principal IS NULL")
    op.create_index(
        "reservations_pending_by_sender",
        "reservations",
        ["sender", "instances"],
        sqlite_where=unsigned,
        postgresql_where=unsigned,
    )
