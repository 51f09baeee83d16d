# Constant: nothing from outside ever becomes part of it. Without a slurm.conf every command of
# Slurm tries for a minute; a controller that is down takes 10 s.
# shellcheck shell=sh disable=SC2086

clusters=$SLURM_CLUSTERS
unset SLURM_CLUSTERS
if [ "$clusters" = all ]; then
  every=$(sacctmgr -n -P show cluster format=cluster 2>/dev/null | tr '\n' ' ')
  clusters=${every:-all}
fi
echo "clusters=$clusters"
on=
case $clusters in '' | all | *" "*| *[!A-Za-z0-9_.-]*) ;; *) on="-M $clusters" ;; esac
echo "user=$(id -un)"
echo "clock=$(date +%s)"
for command in squeue sinfo sacct scontrol sbatch scancel; do
  echo "command=$command=$(command -v "$command")"
done
if ! command -v squeue >/dev/null 2>&1; then
  for folder in /opt/slurm/bin /usr/local/slurm/bin /opt/slurm/current/bin /opt/slurm/default/bin /usr/slurm/bin \
    /cm/shared/apps/slurm/current/bin /usr/local/bin; do
    if [ -x "$folder/squeue" ]; then echo "folder=$folder"; exit 127; fi
  done
  for file in "$SLURM_CONF" /etc/slurm/slurm.conf /etc/slurm-llnl/slurm.conf /usr/local/etc/slurm.conf; do
    server=$(grep -iE '^[[:blank:]]*(SlurmctldHost|ControlMachine)[[:blank:]]*=' "$file" 2>/dev/null | head -n 1)
    if [ -n "$server" ]; then echo "configured=$file names the controller ${server#*=}"; break; fi
  done
  exit 127
fi
soon=
if command -v timeout >/dev/null 2>&1; then soon="timeout 10"; fi
version=$($soon squeue --version) || [ $? -ne 124 ] || echo "slow=squeue --version"
echo "version=$version"
ping=$($soon scontrol $on ping 2>&1 | head -n 2 | tr '\n' ' ')
echo "ping=$ping"
case $ping in
  *" UP"*) $soon scontrol $on show config | sed -n -e 's/^ClusterName *= */ClusterName=/p' \
    -e 's/^AccountingStorageType *= */AccountingStorageType=/p' \
    -e 's/^AccountingStorageTRES *= */AccountingStorageTRES=/p' -e 's/^GresTypes *= */GresTypes=/p' \
    -e 's/^MinJobAge *= *\([0-9]*\).*/MinJobAge=\1/p' ;;
esac
