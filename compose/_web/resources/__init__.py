"""The resources of the API. Each module has the models, handlers and `ENDPOINTS` of one resource."""
