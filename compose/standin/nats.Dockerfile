# Stands in for nats:…-alpine. hadolint global ignore=DL3006
ARG BASE
FROM ${BASE}
COPY wheels/bin/nats-server /usr/local/bin/nats-server
CMD ["nats-server"]
