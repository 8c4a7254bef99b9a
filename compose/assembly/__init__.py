"""Assembly: settings become stores, connections and a `Runtime`, or a NATS server's configuration.

`runtime` has the three functions that programs call; `telemetry` sets OpenTelemetry up. `host`, `tools` and
the commands are above it; `embedded` and the other packages are below.
"""
