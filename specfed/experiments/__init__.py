"""Experiments of papers, run again on any data: what came out, as a table with its settings."""
