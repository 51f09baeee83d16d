# Which program of this machine listens on port $1, for a connection from this machine: prints its
# address and the number of its user, nothing without one. The kernel chooses the most exact
# address, so what listens on 127.0.0.1 comes before what listens on any address.
# shellcheck shell=sh

listener() {
  cat /proc/net/tcp /proc/net/tcp6 2>/dev/null | awk -v port="$(printf ':%04X' "$1")" '
    $4 != "0A" || substr($2, length($2) - 4) != port { next }
    { address = substr($2, 1, length($2) - 5) }
    address == "0100007F" || address == "0000000000000000FFFF00000100007F" { take(1, "127.0.0.1", $8) }
    address == "00000000" { take(2, "127.0.0.1", $8) }
    address == "00000000000000000000000001000000" { take(3, "::1", $8) }
    address == "00000000000000000000000000000000" { take(4, "::1", $8) }
    function take(at, host, uid) { if (!best || at < best) { best = at; found = host " " uid } }
    END { if (best) print found }'
}
