"""Revision 0024: the run times of released leases by class, and the reservation up to which they are counted."""

import sqlalchemy as sa
from alembic import op

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None

_TEXT = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
_NUMBER = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    """Create the tables. The cursor begins before all reservations: those that are still stored are counted."""
    op.create_table(
        "run_times",
        sa.Column("id", _TEXT, nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("marked_at", sa.Double(), nullable=False),
        sa.Column("seconds", _TEXT, nullable=False),
        sa.Column("ratios", _TEXT, nullable=False),
        sa.Column("released_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("run_times_by_mark", "run_times", ["marked_at", "version"])
    op.create_index("run_times_by_release", "run_times", ["released_at", "id"])
    cursor = op.create_table(
        "run_time_cursor",
        sa.Column("id", _NUMBER, autoincrement=False, nullable=False),
        sa.Column("ended_at", sa.Double(), nullable=False),
        sa.Column("sequence", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.bulk_insert(cursor, [{"id": 1, "ended_at": 0.0, "sequence": 0}])
