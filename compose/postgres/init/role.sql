-- Executed once, by the image's entrypoint, when the database is made.
-- Who has a host has its role: it owns its schema, and is nobody in the rest of the server.
\getenv password ROLE_PASSWORD
create role callboard login password :'password';
create schema callboard authorization callboard;
-- The superuser has no password: it logs in by the socket in the container, and nowhere else.
alter role current_user password null;
