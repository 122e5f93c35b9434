"""What holds for every test."""

pytest_plugins = ["tests.balance", "tests.ci_rules", "tests.postgresql_server", "tests.sqlite_file"]
