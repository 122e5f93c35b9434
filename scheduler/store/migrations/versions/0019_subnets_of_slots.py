"""Revision 0019: a slot has the subnet of its machine."""

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None

_TEXT = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    """Add a column that is NULL until a machine is launched."""
    op.add_column("slots", sa.Column("subnet", _TEXT, nullable=True))
