# Stands in for valkey/valkey:…-alpine. hadolint global ignore=DL3006
ARG BASE
FROM ${BASE}
RUN groupadd --gid 1000 valkey && useradd --uid 999 --gid 1000 --no-create-home --home-dir /data valkey \
 && install -d -o valkey -g valkey /data
COPY wheels/valkey-server /usr/local/bin/valkey-server
COPY valkey-cli /usr/local/bin/valkey-cli
WORKDIR /data
VOLUME /data
CMD ["valkey-server"]
