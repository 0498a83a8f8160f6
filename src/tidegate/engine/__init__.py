"""The life of a request: replay, measure, decide, send, recover, learn. Pure: yields effects and is sent results."""
