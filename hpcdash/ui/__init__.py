"""The dashboard: views, dialogs and widgets over the services, a feature a folder."""
