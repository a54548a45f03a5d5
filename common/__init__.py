"""What nodes and server share: parameter algebra, filters, models, data, configuration, records."""
