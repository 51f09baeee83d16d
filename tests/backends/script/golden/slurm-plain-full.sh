#!/bin/bash
#SBATCH --job-name=sweep
#SBATCH --output=/home/ann/launches/hpcdash_exp-1a2b/%A_%a.out
#SBATCH --error=/home/ann/launches/hpcdash_exp-1a2b/%A_%a.err
#SBATCH --partition=gpu
#SBATCH --gpus=4
#SBATCH --nodes=1-4
#SBATCH --tasks-per-node=1
#SBATCH --gpus-per-task=4
#SBATCH --time=01:00:00
#SBATCH --mem=64G
#SBATCH --account=vision
#SBATCH --chdir="/home/ann/my work"
#SBATCH --array=1-10%2
#SBATCH --dependency=afterany:17
#SBATCH --hold
#SBATCH --no-requeue
#SBATCH --exclude=n07

export NOTE='it'"'"'s a $HOME'
export PATH=/opt/env/bin:/usr/bin
module load cuda
python sweep.py "$TASK"
