"""Assembly: build stores, connections and a `Runtime`, or a NATS server's configuration, from settings.

`runtime` has the three functions that programs call. `telemetry` sets up OpenTelemetry. `host`, `tools` and
the commands import this package. It imports `embedded` and the packages outside of `compose`.
"""
