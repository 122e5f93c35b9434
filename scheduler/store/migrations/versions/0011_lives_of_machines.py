"""Revision 0011: a slot has the time of its machine's launch, and hashes of what the machine was launched from. Rules
have the ids of the images that they name by a source.
"""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

_TEXT = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    """Add three columns, which are NULL in every row. NULL means: `slots.launched_at`: the age of the machine counts
    from the begin of the slot's present state; `slots.launch_digest`: the machine counts as not drifted;
    `rules.images`: the rules name no image by a source.
    """
    op.add_column("slots", sa.Column("launched_at", sa.Double(), nullable=True))
    op.add_column("slots", sa.Column("launch_digest", _TEXT, nullable=True))
    op.add_column("rules", sa.Column("images", _TEXT, nullable=True))
