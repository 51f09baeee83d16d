# Debian's hosts files have 127.0.1.1 for a host's own name, which other nodes cannot reach.
# shellcheck shell=bash
MASTER_IP=$({ getent ahostsv4 "$MASTER_ADDR"; [ "$RANK" != 0 ] || hostname -I | tr ' ' '\n'; } 2> /dev/null |
  sed -n 's/ .*//; /^127\.0\.1\.1$/d; /./{p;q;}')
MASTER_IP=${MASTER_IP:-$MASTER_ADDR}
