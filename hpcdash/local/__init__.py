"""hpcdash.embedded by its former name: jobs, supervisors and cron scripts that an older version
started import it.
"""

from hpcdash import embedded

__path__ = embedded.__path__
