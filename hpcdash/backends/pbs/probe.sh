# Constant: nothing from outside ever becomes part of it. Torque's qstat tells its version on
# stderr. A server that hangs hangs its clients for good. A qstat that knows no -F exits 2.
# shellcheck shell=sh

echo "user=$(id -un)"
echo "clock=$(date +%s)"
for command in qstat qsub qdel qhold qrls qrerun qalter qsig qmove qselect pbsnodes; do
  echo "command=$command=$(command -v "$command")"
done
is_slurms() {
  [ "$(dd if="$1" bs=2 count=1 2>/dev/null | tr -d '\000')" = '#!' ] && grep -qi slurm "$1"
}
setting() { sed -n "s/^[[:blank:]]*$1=//p" "$file" 2>/dev/null | tail -n 1 | tr -d '\042\047'; }
program=$(command -v qstat)
if [ -z "$program" ] || is_slurms "$program"; then
  file=${PBS_CONF_FILE:-/etc/pbs.conf}
  root=$(setting PBS_EXEC) server=${PBS_SERVER:-${PBS_DEFAULT:-$(setting PBS_SERVER)}}
  if [ -z "$program$server" ]; then
    for file in /var/spool/torque/server_name /etc/torque/server_name; do
      if [ -s "$file" ]; then server=$(head -n 1 "$file"); break; fi
    done
  fi
  if [ -n "$server" ]; then
    for folder in "${root:-/opt/pbs}/bin" /usr/local/torque/bin /opt/torque/bin /usr/local/bin; do
      if [ "$folder/qstat" = "$program" ]; then break; fi
      if [ -x "$folder/qstat" ]; then echo "folder=$folder"; exit 127; fi
    done
    [ -n "$program" ] || echo "configured=$file names the server $server, but there is no ${root:-/opt/pbs}/bin/qstat"
  fi
  [ -n "$program" ] || exit 127
fi
soon=
if command -v timeout >/dev/null 2>&1; then soon="timeout 10"; fi
version=$({ $soon qstat --version || [ $? -ne 124 ] || echo "hpcdash: no answer"; } 2>&1 </dev/null |
  head -n 5 | tr '\n\r' '  ')
echo "version=$version"
case $version in
  *pbs_version*|*[Vv]ersion:?[0-9]*) ;;
  *) if is_slurms "$program"; then echo "is_slurms=yes"; exit 0; fi ;;
esac
{
  unread=2
  case $version in
    *pbs_version*) $soon qstat -Bf -F dsv -D '|' 2>/dev/null </dev/null; unread=$? ;;
  esac
  if [ $unread -eq 2 ]; then $soon qstat -Bf 2>/dev/null </dev/null; fi
} | tr '|' '\n' | sed -n -e 's/^Server: */Server=/p' \
  -e 's/^[[:blank:]]*\(job_history_enable\) *= */\1=/p' \
  -e 's/^[[:blank:]]*\(scheduling\) *= */\1=/p' -e 's/^[[:blank:]]*\(pbs_version\) *= */\1=/p'
