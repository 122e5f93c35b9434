"""`python -m tasks.clock`: beat, which fires the schedule of tasks/beat.py. It keeps no file."""


def main() -> None:
    """Fire until stopped."""
    from tasks.app import app, require_broker  # noqa: PLC0415 - a fault in the configuration ends the import

    require_broker()
    app.start(["--quiet", "beat"])


if __name__ == "__main__":
    main()
