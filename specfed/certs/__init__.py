"""Certificates and keys of a federation.

Three kinds of keys stay apart. The CA's signs the server's certificate and is needed for nothing else: keep
it off the server. The server's proves to nodes whom they talk to. A node's proves to the server which site it
is; it is not signed, but enrolled at the server.

    making    new ones, and the form that their files have
    writing   files, all or none
    reading   them back from their files, and what they say of themselves
    checking  what is wrong with them
"""
