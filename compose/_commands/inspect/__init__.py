"""Commands about agents, histories, memories, traces, traffic and exports. Only the two `forget` write."""
