# `hpcdash_step` is the number of the command's step.
# shellcheck shell=bash
# All processes of the step, on every node; by srun itself where the controller does not answer.
signal_nodes() {
  scancel --signal="$1" "$SLURM_JOB_ID.$hpcdash_step" || kill -s "$1" "$!"
}

