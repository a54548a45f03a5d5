"""Grids that do not do what they should."""

from collections.abc import Callable

from flwr.app import Message, Metadata

from specfed.local_grid import LocalGrid


class Around:
    """A grid that does what another one does, but for what a subclass changes."""

    def __init__(self, grid: LocalGrid) -> None:
        self.grid = grid

    def __getattr__(self, name: str) -> object:
        return getattr(self.grid, name)


class Losing(Around):
    """A grid on which replies to some messages never arrive; ``lost`` counts them."""

    def __init__(self, grid: LocalGrid, loses: Callable[[Metadata], bool]) -> None:
        super().__init__(grid)
        self.loses, self.lost = loses, 0

    def push_messages(self, messages: list[Message]) -> list[str]:
        ids = self.grid.push_messages(messages)
        gone = [i for i, message in zip(ids, messages, strict=True) if self.loses(message.metadata)]
        self.grid.pull_messages(gone)
        self.lost += len(gone)
        return ids
