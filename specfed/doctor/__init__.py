"""What is wrong with a node or a server, on either end, in words and with the way to mend it."""
