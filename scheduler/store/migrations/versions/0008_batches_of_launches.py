"""Revision 0008: slots that one request to the cloud launches together have the id of their batch."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column `batch` to the slots; NULL for a slot that is launched alone."""
    op.add_column("slots", sa.Column("batch", sa.Text().with_variant(sa.Text(collation="C"), "postgresql")))
