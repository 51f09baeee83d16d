"""Modules of another platform, which only commands of hpcdash.job put on a program's path."""
