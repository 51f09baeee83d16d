# Ends the log of a call with its result or its failure: `output` is the path of its result, `status` that of its runner.
# The folder of a Ray job is on one node, from which nothing else comes.
# shellcheck shell=bash
if [ -f "$output" ]; then printf '\nhpcdash-result: '; cat -- "$output"; echo; fi
if [ -f "$output.error" ]; then printf '\nhpcdash-failure: '; cat -- "$output.error"; echo; fi
exit "$status"
