"""RunStore on PostgreSQL, in rooms: `store` joins them, `opening` opens it, and `schema` has its SQL."""
