"""Revision 0017: a launch back-off records whether its refusal came as the reason for which a machine ended."""

import sqlalchemy as sa
from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add a column that is false in every row. It keeps its default, so that a process of the version before can insert
    rows during a rolling upgrade.
    """
    op.add_column("holds", sa.Column("at_boot", sa.Boolean(), nullable=False, server_default=sa.false()))
