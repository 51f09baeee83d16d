# $1 is the job's id, then come the words to run. The variables are those of a process of the job.
# shellcheck shell=sh

id=$1; shift
found=
for of in /proc/[0-9]*; do
  [ -O "$of" ] || continue
  grep -qszFx -e "PBS_JOBID=$id" "$of/environ" || continue
  found=$of
  break
done
if [ -n "$found" ]; then
  devices='CUDA_VISIBLE_DEVICES|NVIDIA_VISIBLE_DEVICES|ROCR_VISIBLE_DEVICES|HIP_VISIBLE_DEVICES'
  adopt "$found" "PBS_[A-Za-z0-9_]*|TMPDIR|NCPUS|OMP_NUM_THREADS|$devices"
else
  echo "hpcdash: no process of the job can be read here: its variables (PBS_*, TMPDIR) are not set" >&2
  export PBS_JOBID="$id"
fi
exec "$@"
