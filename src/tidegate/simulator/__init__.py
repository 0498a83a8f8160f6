"""A provider that speaks the three APIs and enforces what the real ones enforce.

Independent of the rest of Tidegate: it imports no other room, so that its rules are a second opinion. For dry runs,
tests, the demo and benches.
"""

from tidegate.simulator.app import SimulatorApp, create_app
from tidegate.simulator.compaction_settings import ResponsesCompaction
from tidegate.simulator.context_settings import ContextManagement
from tidegate.simulator.script import Step, read_steps
from tidegate.simulator.serving import Simulator, run, serve
from tidegate.simulator.settings import SimulatorSettings
from tidegate.simulator.state import Record, SimulatorState, Violation

__all__ = [
    "ContextManagement",
    "Record",
    "ResponsesCompaction",
    "Simulator",
    "SimulatorApp",
    "SimulatorSettings",
    "SimulatorState",
    "Step",
    "Violation",
    "create_app",
    "read_steps",
    "run",
    "serve",
]
