"""The client of the HTTP API: requests, streams of events, and the resources of a deployment."""
