"""What the product costs, measured as ratios. ``README.md`` has the results."""
