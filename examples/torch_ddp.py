"""PyTorch DDP that survives the night: `torchrun --nproc-per-node=2 examples/torch_ddp.py`, or one
srun task a GPU.
"""

import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from hpcdash.job import Checkpoints, TrainingGuard, torch_distributed_env


def main() -> None:
    # First thing: where the kill switch is there, the program ends here with exit status 0.
    guard = TrainingGuard(metrics="metrics.jsonl", save_every_minutes=60)
    for name, value in torch_distributed_env().items():
        # torchrun has set them; srun has not.
        os.environ.setdefault(name, value)
    has_gpu = torch.cuda.is_available()
    dist.init_process_group("nccl" if has_gpu else "gloo")
    device = (
        torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        if has_gpu
        else torch.device("cpu")
    )
    if has_gpu:
        torch.cuda.set_device(device)

    model = DistributedDataParallel(torch.nn.Linear(16, 1).to(device))
    optimizer = torch.optim.AdamW(model.parameters())
    checkpoints, first = Checkpoints("checkpoints"), 1
    # Rank 0 chooses: another node may not see yet what was saved last.
    newest = checkpoints.resume_from()
    if newest:
        state = torch.load(newest.path / "state.pt", map_location=device)
        model.module.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first = newest.step + 1

    for step in range(first, 10_001):
        inputs = torch.randn(32, 16, device=device)
        loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

        # .item() waits for the GPU: not at every step.
        guard.step(step, **({"loss": loss} if step % 10 == 0 else {}))
        if guard.should_save() and guard.rank == 0:
            with checkpoints.saving(step) as folder:
                torch.save(
                    {"model": model.module.state_dict(), "optimizer": optimizer.state_dict()},
                    folder / "state.pt",
                )
        if guard.should_stop():
            break
    # No rank leaves while rank 0 saves: launchers end the others soon after the first.
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
