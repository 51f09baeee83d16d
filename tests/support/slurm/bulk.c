/* Submits many distinct batch jobs through libslurm, without a process a job: bulk FIRST LAST PARTITION HELD PREFIX */
#include <slurm/slurm.h>
#include <slurm/slurm_errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* The controller may be busy for some seconds: tries, and microseconds between them. */
#define TRIES 200
#define PAUSE 50000

static int submit(int number, char *partition, int held, const char *prefix, char *folder)
{
    char name[256], output[] = "/dev/null";
    char *environment[] = {"PATH=/usr/bin:/bin", "HOME=/tmp", NULL};
    job_desc_msg_t job;
    submit_response_msg_t *answer = NULL;
    int tries = 0;

    slurm_init_job_desc_msg(&job);
    snprintf(name, sizeof name, "%s%d", prefix, number);
    job.name = name;
    job.script = "#!/bin/sh\nsleep 43200\n";
    job.partition = partition;
    job.num_tasks = 1;
    job.min_cpus = 1;
    job.time_limit = 30 + number % 1000;
    job.user_id = getuid();
    job.group_id = getgid();
    job.work_dir = folder;
    job.std_in = job.std_out = job.std_err = output;
    job.environment = environment;
    job.env_size = 2;
    if (held)
        job.priority = 0;
    while (slurm_submit_batch_job(&job, &answer)) {
        if (++tries == TRIES) {
            slurm_perror(name);
            return 1;
        }
        usleep(PAUSE);
    }
    slurm_free_submit_response_response_msg(answer);
    return 0;
}

int main(int count, char **words)
{
    char folder[4096];

    if (count != 6 || !getcwd(folder, sizeof folder)) {
        fprintf(stderr, "usage: bulk FIRST LAST PARTITION HELD PREFIX\n");
        return 2;
    }
    slurm_init(NULL);
    for (int number = atoi(words[1]); number <= atoi(words[2]); number++)
        if (submit(number, words[3], atoi(words[4]), words[5], folder))
            return 1;
    return 0;
}
