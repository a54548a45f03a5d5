"""What ``specfed init`` writes: a model and data of one's own, to begin with."""
