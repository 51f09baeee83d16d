# shellcheck shell=bash
failed=
check() {
  local said status
  said=$(timeout -k 5 "$2" bash -c "$3" 2>&1 < /dev/null)
  status=$?
  said=$(printf '%s' "$said" | tail -n 1 | tr -d '\000-\037\177' | cut -c 1-300)
  case $status in
    0) echo "check $1: ok${said:+: $said}" ;;
    77) echo "check $1: skipped${said:+: $said}" ;;
    124 | 137) failed=1; echo "hpcdash: the $1 check failed: no answer within $2 s" ;;
    *) failed=1; echo "hpcdash: the $1 check failed: ${said:-status $status}" ;;
  esac
}
type -P nvidia-smi > /dev/null && timeout -k 5 30 nvidia-smi -L < /dev/null 2> /dev/null |
  sed -n 's/.*(UUID: \(GPU-[0-9a-f-]*\)).*/\1/p' | paste -s -d ' ' - | sed 's/^/gpus: /'
