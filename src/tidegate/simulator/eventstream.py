"""Amazon's event stream: the binary frames in which Bedrock sends the events of a Messages stream.

Knows the frame (lengths, headers, checksums) and nothing of the events. Called by `stream`.
"""

from __future__ import annotations

from base64 import b64encode
from binascii import crc32

from tidegate.simulator.jsontext import JsonValue, as_object, encode

_STRING = b"\x07"


def frame(event: JsonValue) -> bytes:
    """One event in a `chunk`; an error becomes an exception message."""
    if isinstance(event, dict) and event.get("type") == "error":
        headers = {":exception-type": "modelStreamErrorException", ":message-type": "exception"}
        payload = encode({"message": as_object(event.get("error")).get("message") or event.get("message", "")})
    else:
        headers = {":event-type": "chunk", ":message-type": "event"}
        payload = encode({"bytes": b64encode(encode(event)).decode()})
    packed = b"".join(_header(name, value) for name, value in {":content-type": "application/json", **headers}.items())
    prelude = (16 + len(packed) + len(payload)).to_bytes(4, "big") + len(packed).to_bytes(4, "big")
    head = prelude + crc32(prelude).to_bytes(4, "big")
    return head + packed + payload + crc32(head + packed + payload).to_bytes(4, "big")


def _header(name: str, value: str) -> bytes:
    return bytes([len(name)]) + name.encode() + _STRING + len(value).to_bytes(2, "big") + value.encode()
