"""Recorded sessions: which requests their files hold, and what the engine would have made of them.

`sessions` tells formats apart, `claude_code` and `codex` read those agents' files, `playing` takes a session through
the engine, `showing` tells what came of it. Called by `tidegate replay`.
"""
