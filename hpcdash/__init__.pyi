from hpcdash.client import Cluster as Cluster
from hpcdash.client import Executor as Executor
from hpcdash.client import Job as Job
from hpcdash.client import JobArray as JobArray
from hpcdash.client import JobFailed as JobFailed
from hpcdash.client import Request as Request
from hpcdash.client import aconnect as aconnect
from hpcdash.client import connect as connect
from hpcdash.job.callbacks import BaseCallback as BaseCallback
from hpcdash.job.callbacks import Callback as Callback
from hpcdash.job.callbacks import RunsOn as RunsOn
from hpcdash.job.callbacks import StatusOn as StatusOn
from hpcdash.job.context import JobContext as JobContext
from hpcdash.job.context import current_job_context as current_job_context
from hpcdash.job.states import Completed as Completed
from hpcdash.job.states import CompletedContext as CompletedContext
from hpcdash.job.states import JobStatus as JobStatus
from hpcdash.job.states import JobStatusUpdatedContext as JobStatusUpdatedContext
from hpcdash.job.states import RunBegin as RunBegin
from hpcdash.job.states import RunBeginContext as RunBeginContext
from hpcdash.job.states import RunEnd as RunEnd
from hpcdash.job.states import RunEndContext as RunEndContext
from hpcdash.job.task import Task as Task
from hpcdash.job.task import task as task

__version__: str
