"""Revision 0015: until when a machine without a slot is booked in the cost ledger."""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None

_TEXT = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    """Add an empty table: a machine without a slot is booked from its launch on when the next sweep finds it."""
    op.create_table(
        "booked_machines",
        sa.Column("machine", _TEXT, nullable=False),
        sa.Column("since", sa.Double(), nullable=False),
        sa.Column("until", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("machine"),
        sqlite_with_rowid=False,
    )
