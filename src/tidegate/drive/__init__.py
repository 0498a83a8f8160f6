"""Performs what an exchange asks for: one driver on asyncio, one that blocks.

The only rooms that hold an exchange and an upstream at once. Called by the gateway and the client transports.
"""
