"""The ASGI gateway: routes, credentials, providers by path or model, and the client's side of an exchange."""
