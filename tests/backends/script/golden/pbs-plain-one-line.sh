#!/bin/bash
#PBS -N hpcdash_exp-1a2b
#PBS -o /home/ann/launches/hpcdash_exp-1a2b/job.out
#PBS -e /home/ann/launches/hpcdash_exp-1a2b/job.err
#PBS -r n
#PBS -W umask=0022
#PBS -k oed
#PBS -l select=1:ncpus=1

cd -- "$PBS_O_WORKDIR" || exit 1
python train.py
