# A whole checkpoint has WHOLE.json, written after all else by hpcdash.job, trainer_state.json (Hugging
# Face's Trainer) or .metadata (torch.distributed.checkpoint); hpcdash.job.lightning gives its file the
# name guard.ckpt once it is whole.
# shellcheck shell=bash
newest_checkpoint() {
  cd -- "$HPCDASH_CHECKPOINTS" && find -L . -mindepth 1 -maxdepth 2 ! -path './.*' \
    \( -path './*/WHOLE.json' -o -path './checkpoint-*/trainer_state.json' -o -path './*/.metadata' \
    -o -path ./guard.ckpt \) \
    -printf '%T@ %P\n' | sort -rn | head -n 1
}
hpcdash_first_checkpoint=$(mkdir -p -- "$HPCDASH_CHECKPOINTS" && [ -w "$HPCDASH_CHECKPOINTS" ] && newest_checkpoint) || {
  echo "hpcdash: cannot save checkpoints in $HPCDASH_CHECKPOINTS: ending the job" >&2
  exit 1
}
HPCDASH_RESUME_FROM=${hpcdash_first_checkpoint#* }
HPCDASH_RESUME_FROM=${HPCDASH_RESUME_FROM:+$HPCDASH_CHECKPOINTS/${HPCDASH_RESUME_FROM%/*}}
if [ "$HPCDASH_RESUME_FROM" ]; then
  echo "hpcdash: resuming from $HPCDASH_RESUME_FROM" >&2
else
  echo "hpcdash: starting over: no complete checkpoint in $HPCDASH_CHECKPOINTS" >&2
fi
