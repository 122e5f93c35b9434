"""Revision 0007: the indexes on `marked_at`, the time of a row's last write, contain the column `version` too.

So the versions of recently written rows are read from an index alone.
"""

from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the four indexes again, with one more column."""
    for table in ("reservations", "slots", "holds", "accounts"):
        op.drop_index(f"{table}_by_mark", table)
        op.create_index(f"{table}_by_mark", table, ["marked_at", "version"])
