#!/bin/sh
# As much of the official image's entrypoint as docker-compose.yml uses: set up once, then be the server.
set -eu
if [ ! -s "$PGDATA/PG_VERSION" ]; then
  install -d -m 0700 "$PGDATA"
  umask 077
  printf '%s\n' "$POSTGRES_PASSWORD" >/tmp/password
  # shellcheck disable=SC2086 - several arguments, as in the official image
  initdb -U "$POSTGRES_USER" --pwfile=/tmp/password -E UTF8 --no-locale ${POSTGRES_INITDB_ARGS:-} >/dev/null
  rm /tmp/password
  echo "host all all all scram-sha-256" >>"$PGDATA/pg_hba.conf"
  pg_ctl -w -o "-c listen_addresses= -c unix_socket_directories=/tmp" start >/dev/null
  createdb -h /tmp -U "$POSTGRES_USER" "$POSTGRES_DB"
  for file in /docker-entrypoint-initdb.d/*.sql; do
    [ ! -f "$file" ] || psql -h /tmp -U "$POSTGRES_USER" -d "$POSTGRES_DB" -qX -v ON_ERROR_STOP=1 -f "$file"
  done
  pg_ctl -w -m fast stop >/dev/null
fi
exec "$@"
