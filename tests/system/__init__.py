"""Tests of a whole stack: Celery workers, Redis, SQLite and the EC2 emulator, each as a process."""
