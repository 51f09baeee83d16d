"""One cluster: its tables with their age, who is asked, how often, and for whom."""
