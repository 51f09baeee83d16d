"""The dashboard: screens, views and widgets over the stores. Knows no transport and no concrete scheduler."""
