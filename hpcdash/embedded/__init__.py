"""The embedded queue: batch scripts as processes of this machine, for where there is no cluster.

Its own command line (`python -m hpcdash.embedded`) prints rows as a scheduler's would. Standard
library and hpcdash.domain's light modules alone: a command of it starts in a few hundredths of a
second.
"""

# Names the queue's folder.
FOLDER_VARIABLE = "HPCDASH_QUEUE"
