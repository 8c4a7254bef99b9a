"""Commands of operators: migrations, doctor, NATS configuration, dead letters, limits and schedules."""
