"""Revision 0014: a slot has the id of the gang for whose machines it is launched."""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

_TEXT = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    """Add a column that is NULL in every row: launches that are under way during the migration count as launches of
    single machines.
    """
    op.add_column("slots", sa.Column("gang", _TEXT, nullable=True))
