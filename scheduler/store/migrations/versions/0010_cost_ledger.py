"""Revision 0010: the cost ledger. A slot gets the account whose demand caused the launch, and the interval of its
machine whose costs are not booked yet.
"""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

_TEXT = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    """Add a table, and columns that are NULL in the existing rows: the costs of their machines are booked from the next
    change of the row on, for no account.
    """
    op.create_table(
        "costs",
        sa.Column("hour", sa.Double(), nullable=False),
        sa.Column("pool", _TEXT, nullable=False),
        sa.Column("offering", _TEXT, nullable=False),
        sa.Column("account", _TEXT, nullable=False),
        sa.Column("kind", _TEXT, nullable=False),
        sa.Column("seconds", sa.Double(), nullable=False),
        sa.Column("dollars", sa.Double(), nullable=False),
        sa.Column("unpriced", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("hour", "pool", "offering", "account", "kind"),
        sqlite_with_rowid=False,
    )
    # One column in each batch, because a batch may add its columns in any order. The table is made again, so that the
    # schema has the same text as in a new database.
    for name in ("launched_for", "meter"):
        with op.batch_alter_table("slots", recreate="always") as slots:
            slots.add_column(sa.Column(name, _TEXT, nullable=True))
