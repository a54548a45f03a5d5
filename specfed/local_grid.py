"""A Flower grid whose nodes live in this process: the same apps, no network, no Ray.

The very ServerApp and ClientApp of a deployment run here, one node after the other in the order of their
ids. On one kind of CPU a run gives the same bits as the deployment of the same run does.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

from flwr.app import Context, Error, Message, RecordDict
from flwr.serverapp import Grid, ServerApp
from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity

from common import memo
from common.config import NodeConfig, RunConfig, Value

SERVER_ID = 1  # Flower's own id of the server's side
FAILED = 2  # Flower's code for an app that raised

Answer = Callable[[Message, Context], Message]  # a ClientApp, or what stands around one


class LocalGrid(Grid):
    """Answers each message at once by calling the ClientApp.

    ``online`` may be changed between rounds: node ids that are not in it do not answer. ``contexts`` holds
    what each node is given and remembers, by node id.
    """

    def __init__(
        self, client_app: Answer, nodes: Iterable[Mapping[str, Value]], run: Mapping[str, Value]
    ) -> None:
        self._client_app = client_app
        self.contexts = {
            node_id: Context(SERVER_ID, node_id, dict(node), RecordDict(), dict(run))
            for node_id, node in enumerate(nodes, start=SERVER_ID + 1)
        }
        self.online = set(self.contexts)
        self._replies: dict[str, Message] = {}
        self._numbers = itertools.count(1)

    def set_run(self, run: Run) -> None:
        """There is one run here; nothing to set."""

    @property
    def run(self) -> Run:
        """The one run."""
        return Run.create_empty(SERVER_ID)

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str,
        ttl: float | None = None,
    ) -> Message:
        """A message, as Flower's interface asks for."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> list[int]:
        """The ids of the nodes that are online, ascending."""
        return sorted(self.online)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Carry out each message; its reply waits to be pulled."""
        ids = []
        for message in messages:
            message.metadata.__dict__["_message_id"] = f"local-{next(self._numbers)}"
            ids.append(message.metadata.message_id)
            if message.metadata.dst_node_id in self.online:
                self._replies[ids[-1]] = self._answer(message)
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """The replies to these messages, each once."""
        return [self._replies.pop(i) for i in list(message_ids) if i in self._replies]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """Push, then pull. Nobody needs time to answer, so ``timeout`` has no use here."""
        return self.pull_messages(self.push_messages(messages))

    def _answer(self, message: Message) -> Message:
        try:
            return self._client_app(message, self.contexts[message.metadata.dst_node_id])
        except Exception as error:  # as a SuperNode does: whatever an app raises becomes an error reply
            return Message(Error(FAILED, f"{type(error)}:<'{error}'>"), reply_to=message)


def run_locally(
    server_app: ServerApp, client_app: Answer, config: RunConfig, nodes: Iterable[NodeConfig]
) -> None:
    """One whole run in this process; its folder goes where the environment says (``server_app.folder``)."""
    values = config.as_dict()
    grid = LocalGrid(client_app, [node.as_dict() for node in nodes], values)
    with own_identity(), memo.keeping():
        server_app(grid=grid, context=Context(SERVER_ID, SERVER_ID, {}, RecordDict(), values))


@contextmanager
def own_identity() -> Iterator[None]:
    """Let this process make Flower messages, as if it were a task of a run."""
    before = (TaskIdentity._task_id, TaskIdentity._run_id, TaskIdentity._node_id)
    TaskIdentity._task_id = TaskIdentity._run_id = TaskIdentity._node_id = SERVER_ID
    try:
        yield
    finally:
        TaskIdentity._task_id, TaskIdentity._run_id, TaskIdentity._node_id = before
