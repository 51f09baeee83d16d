"""The dashboard: screens, views and widgets over the stores."""
