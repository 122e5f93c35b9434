"""The real thing: Celery workers, Redis, SQLite and the EC2 emulator, as processes of their own."""
