"""`hpcdash render`: the batch script of a request, for people and for other programs.

Queries no cluster.
"""

from __future__ import annotations

import hashlib

from msgspec.structs import replace

from hpcdash.assembly import chosen_site, scheduler_for
from hpcdash.backends.script.body import Place, folder_name, has_library, secret_variables
from hpcdash.backends.script.call import call_names
from hpcdash.backends.script.folder import CODE_FOLDER, LIBRARY_NAME, SECRETS_NAME, staged_name
from hpcdash.cli.options import CommonOptions
from hpcdash.cli.submit import read_source
from hpcdash.cli.terminal import print_notes, print_text
from hpcdash.config.queue_defaults import with_queue_defaults
from hpcdash.errors import UsageError
from hpcdash.services.submit.code_files import find_code_files

_UID_LETTERS = 8


def run_render(
    common: CommonOptions,
    *,
    request: str,
    scheduler: str | None,
    storage_root: str | None,
    plain: bool,
) -> None:
    """Print only the script to stdout, and messages to stderr.

    Equal requests give equal scripts.
    """
    site = chosen_site(common)
    backend = scheduler_for(scheduler, site.cluster)
    if (writer := backend.scripts.writer()) is None:
        raise UsageError(f"hpcdash cannot write {backend.title} scripts")
    source = read_source(request, site=site.launch.site, user=site.cluster.user, plain=plain)
    requested = with_queue_defaults(source.request, site.launch.queues, ())
    root = storage_root if storage_root is not None else requested.site.storage_root
    uid = hashlib.sha256(source.text.encode()).hexdigest()[:_UID_LETTERS]
    notes = []
    if requested.slots and requested.slot_type is None:
        notes.append(
            'no cluster was queried: slots are assumed to be GPUs; set slot_type = "cpu" for '
            "CPU cores"
        )
    place = Place(uid)
    if root:
        try:
            place = Place(uid, f"{root.rstrip('/')}/{folder_name(requested, uid)}")
        except UsageError as error:
            raise source.with_file_line(error) from None
        notes.append(
            f"the job's files and logs go to {place.folder}: create that folder on the cluster "
            "before you submit"
        )
        if secrets := ", ".join(secret_variables(requested)):
            notes.append(
                f"the script reads {secrets} from {SECRETS_NAME} in that folder, which hpcdash "
                "submit creates"
            )
        if has_library(requested, place):
            path = f"{place.folder}/{LIBRARY_NAME}"
            notes.append(
                f"the script imports hpcdash.job from {path}: create that file with python -m "
                "hpcdash.job.zip"
            )
        if requested.call is not None and (names := call_names(requested.call)):
            notes.append(
                f"the script reads its arguments from {' and '.join(names)} in that folder, "
                "which hpcdash submit creates"
            )
    else:
        notes.append("logs go to the folder you submit from (--storage-root changes that)")
    if source.script is not None:
        name = staged_name(source.script.name, requested.site.run_as)
        staged = f"{place.folder}/{name}" if root else str(source.script)
        place = replace(place, script=staged)
        notes.append(f"the script runs {staged}, which must exist on the cluster")
    try:
        if requested.files:
            code = find_code_files(requested.files, source.folder, site.launch.files_limit)
            notes += [*code.notes, f"hpcdash submit copies them to {place.folder}/{CODE_FOLDER}"]
        script = writer.batch_script(requested, place)
    except UsageError as error:
        raise source.with_file_line(error) from None
    print_notes(*script.warnings, *notes)
    print_text(script.text)
