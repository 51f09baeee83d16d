#!/bin/bash
#SBATCH --job-name=hpcdash_exp-1a2b
#SBATCH --output=/home/ann/launches/hpcdash_exp-1a2b/%j.out
#SBATCH --error=/home/ann/launches/hpcdash_exp-1a2b/%j.err
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --no-requeue

python train.py
