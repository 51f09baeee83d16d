"""TOML to typed settings, and a new cluster back into the file."""

from hpcdash.config.destination import SshDestination, parse_ssh_destination
from hpcdash.config.example import default_config_text
from hpcdash.config.problems import ConfigProblems, Problem, did_you_mean
from hpcdash.config.read import config_path, load_settings, settings_from_text
from hpcdash.config.settings import (
    ClusterSettings,
    EmbeddedSettings,
    MetricsSettings,
    PollSettings,
    Settings,
    UiSettings,
)
from hpcdash.config.write import cluster_block, write_cluster

__all__ = [
    "ClusterSettings",
    "ConfigProblems",
    "EmbeddedSettings",
    "MetricsSettings",
    "PollSettings",
    "Problem",
    "Settings",
    "SshDestination",
    "UiSettings",
    "cluster_block",
    "config_path",
    "default_config_text",
    "did_you_mean",
    "load_settings",
    "parse_ssh_destination",
    "settings_from_text",
    "write_cluster",
]
