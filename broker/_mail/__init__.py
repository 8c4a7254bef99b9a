"""A host's messages: its streams, one pull consumer for each shard, and one connection for all of it.

Messages of JetStream enter through `reader`, and leave it in order with what acknowledges them; what
agents send enters through `connection`. `transport` opens it and is all that a host sees. Below are
`nats` and `wire`; `gateway` and `client` are its neighbours, and none sees the other.
"""
