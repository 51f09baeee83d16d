"""The `hpcdash` command; `python -m hpcdash` is the same."""

import signal


def main() -> None:
    """Ends at ctrl+c without a traceback while modules are loaded, too."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from hpcdash.cli.main import main as run

    run()


if __name__ == "__main__":
    main()
