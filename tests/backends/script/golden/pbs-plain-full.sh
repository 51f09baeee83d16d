#!/bin/bash
#PBS -N sweep
#PBS -o /home/ann/launches/hpcdash_exp-1a2b/job.^array_index^.out
#PBS -e /home/ann/launches/hpcdash_exp-1a2b/job.^array_index^.err
#PBS -q gpu
#PBS -A vision
#PBS -J 1-10%2
#PBS -W depend=afterany:17
#PBS -h
#PBS -W umask=0022
#PBS -k oed
#PBS -l select=1:ngpus=4:mem=64gb
#PBS -l walltime=01:00:00

export NOTE='it'"'"'s a $HOME'
export PATH=/opt/env/bin:/usr/bin
cd -- '/home/ann/my work' || exit 1
module load cuda
python sweep.py "$TASK"
