"""Former name of hpcdash.embedded, which scripts of earlier versions import."""

raise ImportError("hpcdash.local was renamed to hpcdash.embedded: create this script or job again")
