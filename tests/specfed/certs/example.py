"""When the tests take place, and what the server is called."""

from datetime import UTC, datetime

NOW = datetime(2026, 6, 1, 12, tzinfo=UTC)
HOSTS = ["fl.Example.org", "10.0.0.5", "2001:db8::7", "*.lab.example.org"]
