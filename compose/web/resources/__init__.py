"""The resources of the API: a module each, with models, handlers and `ENDPOINTS`."""
