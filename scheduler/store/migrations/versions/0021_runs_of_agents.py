"""Revision 0021: the slot of a static host has the id of its agent's run."""

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None

_TEXT = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    """Add a column that is NULL until an agent registers with the id of its run."""
    op.add_column("slots", sa.Column("run", _TEXT, nullable=True))
