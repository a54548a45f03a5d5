"""A Flower app as anybody would write it; only the strategy comes from specfed."""
