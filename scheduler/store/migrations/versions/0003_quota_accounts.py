"""Revision 0003: quota accounts and the history of their balances. Leases get a cost; slots get the time of the last
report about them.
"""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_TEXT = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def upgrade() -> None:
    """Add two tables, and columns whose values in the existing rows mean that nothing was charged and no report has
    arrived.
    """
    op.create_table(
        "accounts",
        sa.Column("id", _TEXT, nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("marked_at", sa.Double(), nullable=False),
        sa.Column("charge_rate", _TEXT, nullable=False),
        sa.Column("max_charge_seconds", sa.Double(), nullable=False),
        sa.Column("max_fanout", sa.BigInteger(), nullable=False),
        sa.Column("per_label_task_limits", _TEXT, nullable=False),
        sa.Column("disable_free_tasks", sa.Boolean(), nullable=False),
        sa.Column("description", _TEXT, nullable=False),
        sa.Column("balance", _TEXT, nullable=False),
        sa.Column("charged_at", sa.Double(), nullable=False),
        sa.Column("due", _TEXT, nullable=False),
        sa.Column("forgotten", sa.Boolean(), nullable=False),
        sa.Column("forgotten_upto", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("accounts_by_mark", "accounts", ["marked_at"])
    op.create_table(
        "balances",
        sa.Column("account", _TEXT, nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.Column("balance", _TEXT, nullable=False),
        sa.PrimaryKeyConstraint("account", "at"),
        sqlite_with_rowid=False,
    )
    op.create_index("balances_by_time", "balances", ["at"])
    with op.batch_alter_table("leases") as leases:
        leases.add_column(sa.Column("charged_at", sa.Double(), nullable=True))
    with op.batch_alter_table("leases") as leases:
        leases.add_column(sa.Column("weight", sa.Double(), nullable=False, server_default="1"))
    with op.batch_alter_table("leases") as leases:
        leases.alter_column("weight", server_default=None)
    # One column in each batch, because a batch may add its columns in any order. The table is made again, so that the
    # schema has the same text as in a new database.
    with op.batch_alter_table("slots", recreate="always") as slots:
        slots.add_column(sa.Column("stranger", _TEXT, nullable=True))
    with op.batch_alter_table("slots", recreate="always") as slots:
        slots.add_column(sa.Column("noted_at", sa.Double(), nullable=True))
