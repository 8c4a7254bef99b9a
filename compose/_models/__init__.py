"""The clients of `compose.models`. Only this room imports the SDKs of providers, each at its first call."""
