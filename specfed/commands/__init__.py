"""The commands of the command line, a module for each group; ``specfed.cli`` puts them together."""
