"""The installed flows, served by a host. The host loads a bundle when a run of it begins there."""

from actors._workflow.installed import InstalledFlows, serve

__all__ = ["InstalledFlows", "serve"]
