"""Revision 0015: a table of the times until which the costs of machines without a slot are booked."""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None

_TEXT = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    """Add the empty table `booked_machines`. A machine without a slot gets its row when a sweep (a comparison of the
    slots with EC2) finds it. The sweep then books the costs of the machine since its launch.
    """
    op.create_table(
        "booked_machines",
        sa.Column("machine", _TEXT, nullable=False),
        sa.Column("since", sa.Double(), nullable=False),
        sa.Column("until", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("machine"),
        sqlite_with_rowid=False,
    )
