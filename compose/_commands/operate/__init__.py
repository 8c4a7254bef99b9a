"""Commands of operators, such as migrations, doctor, NATS configuration, dead letters, limits and schedules."""
