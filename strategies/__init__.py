"""The server's mathematics: what a round's updates say about their senders, and the model they make."""
