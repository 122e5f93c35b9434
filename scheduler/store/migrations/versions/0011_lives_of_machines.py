"""Revision 0011: a slot has the time of its machine's launch, and hashes of what the machine was launched from."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0008"
branch_labels = None
depends_on = None

_TEXT = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    """Add two columns that are NULL in every row: the age of a machine counts from its present state, and the machine
    does not differ from what its pool launches.
    """
    op.add_column("slots", sa.Column("launched_at", sa.Double(), nullable=True))
    op.add_column("slots", sa.Column("launch_digest", _TEXT, nullable=True))
