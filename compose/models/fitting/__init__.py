"""Requests of the SDK that their provider accepts: `turns` mends their turns by `actors.context.fitting`."""
