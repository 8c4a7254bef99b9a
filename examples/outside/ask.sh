#!/usr/bin/env bash
# Ask an agent from a shell, with nothing but bash: ask.sh SUBJECT BODY [ID]
# CALLBOARD_NATS_URL says where. Instead of bash's own /dev/tcp, `nc HOST PORT` would do as well.
set -euo pipefail
[ $# -ge 2 ] || { sed -n 2,3p "$0" >&2; exit 2; }
export LC_ALL=C # sizes are bytes
subject=$1 body=$2 id=${3:-$RANDOM$RANDOM$RANDOM}

url=${CALLBOARD_NATS_URL#nats://} login=
[[ $url == *@* ]] && login=${url%@*} url=${url##*@}
user=${login%%:*}
hello='{"verbose":false,"headers":true,"no_responders":true'
[ -n "$login" ] && hello+=",\"user\":\"$user\",\"pass\":\"${login#*:}\""
inbox=_INBOX_${user:-sh}.$$-$RANDOM # nobody else listens to it
exec 3<>"/dev/tcp/${url%:*}/${url##*:}"

head=$'NATS/1.0\r\nNats-Msg-Id: '$id$'\r\n\r\n'
printf 'CONNECT %s}\r\nSUB %s 1\r\n' "$hello" "$inbox" >&3
printf 'HPUB %s %s %d %d\r\n%s%s\r\n' \
  "$subject" "$inbox" ${#head} $((${#head} + ${#body})) "$head" "$body" >&3

while IFS= read -r -t 40 -u 3 line; do
  read -r -a said <<<"${line%$'\r'}" || true
  case ${said[0]:-} in
    PING) printf 'PONG\r\n' >&3 ;;
    -ERR) echo "$line" >&2; exit 1 ;;
    MSG) IFS= read -r -N "${said[3]}" -u 3 answer; echo "$answer"; exit 0 ;;
    HMSG) # head and body; their sizes are the last two words
      IFS= read -r -N "${said[3]}" -u 3 head
      IFS= read -r -N $((said[4] - said[3])) -u 3 answer || true
      [[ $head == "NATS/1.0 503"* ]] && { echo "no host serves $subject" >&2; exit 1; }
      echo "$answer"
      [[ $head != *Nats-Service-Error-Code* ]]; exit ;;
  esac
done
echo "no answer in 40 s; ask again with the same id: $id" >&2
exit 1
