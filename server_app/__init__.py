"""The operator's side of a run: rounds, evaluation, the run folder and its report."""
