"""A stand-in for the job that fails at night."""


def forward(batch: int) -> None:
    needed = 2.5
    free = 1.1
    raise RuntimeError(
        f"CUDA out of memory. Tried to allocate {needed:.2f} GiB. GPU 0 has a total capacity of "
        f"79.15 GiB of which {free:.2f} GiB is free. (batch {batch})"
    )


def train() -> None:
    for batch in range(3):
        print(f"batch {batch}", flush=True)
        if batch == 2:
            forward(batch)


train()
