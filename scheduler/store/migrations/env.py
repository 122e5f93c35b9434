"""Alembic's entry: it runs the revisions on the connection that `scheduler.store.migrating` hands over."""

from alembic import context

from scheduler.store.tables import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    # One transaction around all revisions, which the caller has begun: either the new schema or the old one.
    transaction_per_migration=False,
)
context.run_migrations()
