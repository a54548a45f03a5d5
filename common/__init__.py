"""What nodes and server share: parameter algebra, filters, models, data, configuration, records."""

__version__ = "0.1.0"
