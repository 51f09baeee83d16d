"""A stand-in for a fine-tuning: progress bars as tqdm draws them, and colours."""

import sys
import time

GREEN, YELLOW, BOLD, DIM, END = "\033[32m", "\033[33m", "\033[1m", "\033[2m", "\033[0m"


def bar(done: int, total: int, loss: float) -> str:
    filled = 30 * done // total
    drawn = "█" * filled + " " * (30 - filled)
    return (
        f"\rEpoch {BOLD}{1 + done // 200}{END}: {100 * done // total:3}%|{GREEN}{drawn}{END}|"
        f" {done}/{total} [00:{done // 10:02}, 9.8it/s, {YELLOW}loss={loss:.3f}{END}, v_num=7]"
    )


print(f"{BOLD}loading{END} tokenizer and weights {DIM}(3.1 GB){END}")
print(f"{YELLOW}warning{END}: 12 samples are longer than 4096 tokens and will be truncated")
total = 1200
for done in range(total + 1):
    sys.stderr.write(bar(done, total, 2.6 - 1.4 * done / total))
    sys.stderr.flush()
    time.sleep(0.002 if done < 250 else 0.1)
print("\ndone")
