"""Revision 0028: the machine for which the key of a host counts."""

import sqlalchemy as sa
from alembic import op

revision = "0028"
down_revision = "0027"
branch_labels = None
depends_on = None

_TEXT = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    """Add the column. The keys of present hosts count for any machine."""
    op.add_column("principals", sa.Column("machine", _TEXT, nullable=True))
