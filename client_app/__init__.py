"""One node: it trains on its own data and sends back an update."""
