"""A PostgreSQL database whose server clock is off: a `clock_timestamp()` of its own is found before the server's."""

from psycopg import sql

from testbed.postgresql_server import PostgresServer

_DEFINITION = """
CREATE SCHEMA shifted_clock;
CREATE TABLE shifted_clock.shift (seconds double precision NOT NULL);
INSERT INTO shifted_clock.shift VALUES (0);
CREATE FUNCTION public.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE AS
  $$ SELECT pg_catalog.clock_timestamp() + (SELECT seconds FROM shifted_clock.shift) * interval '1 second' $$;
CREATE FUNCTION public.now() RETURNS timestamptz LANGUAGE sql STABLE AS
  $$ SELECT pg_catalog.now() + (SELECT seconds FROM shifted_clock.shift) * interval '1 second' $$;
"""


def shift_server_clock(server: PostgresServer, database: str, seconds: float) -> None:
    """Shift the server's clock for this database, from the next statement on.

    Connections find the function by the database's search path, which they read when they are opened: connections from
    before the first call keep the server's clock.
    """
    with server.connect(database) as connection:
        if connection.execute("SELECT to_regnamespace('shifted_clock')").fetchone() == (None,):
            connection.execute(_DEFINITION)
            # pg_catalog goes first unless the path names it at another place. Tables stay in `public`.
            path = sql.SQL("ALTER DATABASE {} SET search_path = public, pg_catalog")
            connection.execute(path.format(sql.Identifier(database)))
        connection.execute("UPDATE shifted_clock.shift SET seconds = %s", [seconds])
