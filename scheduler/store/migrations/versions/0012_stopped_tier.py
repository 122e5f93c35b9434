"""Revision 0012: a slot has the start or stop of its machine that the cloud has not confirmed yet, and the price of the
storage of its stopped machine.
"""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

_TEXT = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    """Add columns that are NULL in every row: no machine is stopped, or is to be started or stopped."""
    op.add_column("slots", sa.Column("power", _TEXT, nullable=True))
    op.add_column("slots", sa.Column("storage_price", sa.Double(), nullable=True))
