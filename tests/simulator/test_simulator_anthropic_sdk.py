"""The real anthropic SDK against the simulator's context management, over a socket, as it comes."""

import anthropic
import pytest
from anthropic import beta_tool
from anthropic.types import (
    CompactionBlockAmbiguousError,
    CompactionBlockMisplacedError,
    CompactionContentMismatchError,
    CompactionIncompleteTurnError,
    CompactionNothingToSummarizeError,
    CompactionSignatureInvalidError,
    CompactionToolChangesMismatchError,
    CompactionUnavailableError,
)

from tidegate.simulator import ContextManagement, SimulatorSettings, Step, serve

ON_DEMAND, THRESHOLD, EDITING = "compact-2026-09-04", "compact-2026-01-12", "context-management-2025-06-27"
GO = {"role": "user", "content": "Go. FACT-01 is the port."}
ASK = {"role": "user", "content": "What do you know?"}
HISTORY = [GO, {"role": "assistant", "content": "FACT-02 is done."}]
LONG = [{"role": "user", "content": "FACT-03. " + "x" * 3000}]
MODEL = {"model": "claude-opus-5-5", "max_tokens": 1500}
COMPACT = {**MODEL, "betas": [ON_DEMAND], "compaction": {"type": "summarize"}}
EDIT = {"edits": [{"type": "compact_20260112", "trigger": {"type": "input_tokens", "value": 500}}]}
MANAGED = {**MODEL, "betas": [THRESHOLD], "context_management": EDIT}


@pytest.fixture(scope="module")
def running():
    settings = SimulatorSettings(window=6000, context=ContextManagement(least_trigger=100))
    with serve(settings) as simulator:
        yield simulator


@pytest.fixture
def simulator(running):
    yield running
    running.reset()


@pytest.fixture
def claude(simulator):
    with anthropic.Anthropic(base_url=simulator.url, api_key="any", max_retries=0) as client:
        yield client


@pytest.fixture
async def asyncio_claude(simulator):
    async with anthropic.AsyncAnthropic(base_url=simulator.url, api_key="any", max_retries=0) as client:
        yield client


def said(message):
    return "".join(block.text for block in message.content if block.type == "text")


class TestOnDemand:
    @pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
    def test_compact_and_go_on(self, simulator, claude, streamed):
        if streamed:
            with claude.beta.messages.stream(**COMPACT, messages=HISTORY) as stream:
                kinds = [event.type for event in stream]
                message = stream.get_final_message()
            assert "content_block_delta" not in kinds
        else:
            message = claude.beta.messages.create(**COMPACT, messages=HISTORY)
        (block,) = message.content
        assert (message.stop_reason, block.type, bool(block.signature)) == ("compaction", "compaction", True)
        assert (message.usage.input_tokens, message.usage.iterations[0].type) == (0, "compaction")
        told = claude.beta.messages.create(**MODEL, betas=[ON_DEMAND], messages=[message.to_param(), ASK])
        assert said(told) == "I know FACT-01, FACT-02."
        assert told.usage.iterations[-1].input_tokens == told.usage.input_tokens
        assert simulator.state.violations == []

    async def test_asynchronously(self, simulator, asyncio_claude):
        message = await asyncio_claude.beta.messages.create(**COMPACT, messages=HISTORY)
        request = {**MODEL, "betas": [ON_DEMAND], "messages": [message.to_param(), ASK]}
        async with asyncio_claude.beta.messages.stream(**request) as stream:
            words = "".join([text async for text in stream.text_stream])
        assert words == "I know FACT-01, FACT-02."
        counted = await asyncio_claude.beta.messages.count_tokens(
            model=MODEL["model"], betas=[ON_DEMAND], messages=request["messages"]
        )
        assert counted.input_tokens == simulator.state.main()[-1].input_tokens
        assert counted.context_management is None

    def test_a_kept_tail_with_thinking(self, simulator, claude):
        request = {**MODEL, "thinking": {"type": "adaptive"}, "betas": [ON_DEMAND]}
        history = []
        for _ in range(3):
            history.append(GO)
            history.append(claude.beta.messages.create(**request, messages=history).to_param())
        block = claude.beta.messages.create(**request, compaction={"type": "summarize"}, messages=history[:3])
        told = claude.beta.messages.create(**request, messages=[block.to_param(), *history[3:], ASK])
        assert said(told) == "I know FACT-01."
        assert simulator.state.violations == []

    def test_the_tool_runner_compacts_between_its_turns(self, simulator, claude):
        @beta_tool
        def read_file(path: str) -> str:
            """Reads a file.

            Args:
                path: Which one.
            """
            return "FACT-04 " + "y" * 400

        simulator.configure(tool_rounds=4)
        runner = claude.beta.messages.tool_runner(**MODEL, betas=[ON_DEMAND], messages=[GO], tools=[read_file])
        reasons = []
        for number, message in enumerate(runner):
            reasons.append(message.stop_reason)
            if number == 1:
                runner.compact_before_next_turn()
        simulator.configure(tool_rounds=2)
        assert reasons == ["tool_use", "tool_use", "compaction", "tool_use", "tool_use", "end_turn"]
        assert set(simulator.state.facts) == {"FACT-01", "FACT-04"}
        assert {entry.rule for entry in simulator.state.violations} == {"thread"}, "tried, and gone on without"
        assert len(simulator.state.compactions()) == 1

    def test_without_a_summary(self, simulator, claude):
        simulator.script(Step(do="refusal", on="compaction"))
        message = claude.beta.messages.create(**COMPACT, messages=HISTORY)
        assert (message.content, message.stop_reason, message.stop_details.type) == ([], "refusal", "refusal")


class TestThreshold:
    @pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
    def test_compacts_within_an_answer(self, simulator, claude, streamed):
        request = {**MANAGED, "messages": [*LONG, {"role": "assistant", "content": "Yes."}, ASK]}
        if streamed:
            with claude.beta.messages.stream(**request) as stream:
                compactions = [event for event in stream if event.type == "compaction"]
                message = stream.get_final_message()
            assert "FACT-03" in compactions[0].content
        else:
            message = claude.beta.messages.create(**request)
            assert message.context_management.applied_edits == []
        assert [block.type for block in message.content] == ["compaction", "text"]
        assert said(message) == "I know FACT-03."
        assert [entry.type for entry in message.usage.iterations] == ["compaction", "message"]
        again = claude.beta.messages.create(**MANAGED, messages=[*request["messages"], message.to_param(), ASK])
        assert said(again) == "I know FACT-03."
        assert simulator.state.violations == []

    async def test_paused_and_continued(self, simulator, asyncio_claude):
        pausing = {"edits": [EDIT["edits"][0] | {"pause_after_compaction": True}]}
        message = await asyncio_claude.beta.messages.create(**MANAGED | {"context_management": pausing}, messages=LONG)
        assert (message.stop_reason, message.usage.output_tokens) == ("compaction", 0)
        told = await asyncio_claude.beta.messages.create(**MANAGED, messages=[message.to_param(), ASK])
        assert said(told) == "I know FACT-03."

    def test_counting_tells_both_sizes(self, simulator, claude):
        block = {"role": "assistant", "content": [{"type": "compaction", "content": "FACT-07."}]}
        counted = claude.beta.messages.count_tokens(
            model=MODEL["model"], betas=[THRESHOLD], context_management=EDIT, messages=[*LONG, block, ASK]
        )
        assert counted.context_management.original_input_tokens > counted.input_tokens + 500

    def test_clearing(self, simulator, claude):
        use = {"type": "tool_use", "id": "a", "name": "f", "input": {}}
        result = {"type": "tool_result", "tool_use_id": "a", "content": "FACT-08 " + "z" * 800}
        history = [GO, {"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
        edit = {
            "type": "clear_tool_uses_20250919",
            "trigger": {"type": "tool_uses", "value": 1},
            "keep": {"type": "tool_uses", "value": 0},
        }
        message = claude.beta.messages.create(
            **MODEL, betas=[EDITING], messages=history, context_management={"edits": [edit]}
        )
        (applied,) = message.context_management.applied_edits
        assert (applied.type, applied.cleared_tool_uses) == ("clear_tool_uses_20250919", 1)
        assert simulator.state.facts == ("FACT-01",)


def alone(block):
    return [{"role": "assistant", "content": [block]}]


class TestTypedErrors:
    """The SDK picks the class by status and `details.error_code`."""

    @pytest.mark.parametrize(
        ("change", "error"),
        [
            (lambda b: [{"role": "assistant", "content": [b, b]}, ASK], CompactionBlockAmbiguousError),
            (lambda b: [GO, {"role": "assistant", "content": [b]}, ASK], CompactionBlockMisplacedError),
            (lambda b: alone(b | {"content": "x"}), CompactionContentMismatchError),
            (lambda b: alone(b | {"signature": "x"}), CompactionSignatureInvalidError),
            (lambda b: alone(b | {"tool_changes": []}), CompactionToolChangesMismatchError),
        ],
    )
    def test_of_a_block_that_comes_back(self, simulator, claude, change, error):
        block = claude.beta.messages.create(**COMPACT, messages=HISTORY).content[0].to_dict()
        with pytest.raises(error) as caught:
            claude.beta.messages.create(**MODEL, betas=[ON_DEMAND], messages=change(block))
        assert caught.value.details.error_code == simulator.state.violations[-1].rule

    @pytest.mark.parametrize(
        ("messages", "error"),
        [
            ([], CompactionNothingToSummarizeError),
            (
                [GO, {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": {}}]}],
                CompactionIncompleteTurnError,
            ),
        ],
    )
    def test_of_a_request_for_one(self, simulator, claude, messages, error):
        with pytest.raises(error):
            claude.beta.messages.create(**COMPACT, messages=messages)

    async def test_unavailable(self, simulator, asyncio_claude):
        simulator.script(Step(do="unavailable"))
        with pytest.raises(CompactionUnavailableError) as caught:
            await asyncio_claude.beta.messages.create(**COMPACT, messages=HISTORY)
        assert caught.value.status_code == 529

    def test_a_naive_dump_of_a_block_is_refused(self, simulator, claude):
        message = claude.beta.messages.create(**COMPACT, messages=HISTORY)
        block = message.content[0].model_dump() | {"citations": None}
        with pytest.raises(anthropic.BadRequestError, match=r"compaction\.citations: Extra inputs are not permitted"):
            claude.beta.messages.create(
                **MODEL, betas=[ON_DEMAND], messages=[{"role": "assistant", "content": [block]}, ASK]
            )


class TestCapabilities:
    def test_of_a_model(self, claude):
        told = claude.beta.models.retrieve("claude-opus-5-5", betas=[ON_DEMAND]).capabilities
        assert (told.compaction.supported, told.compaction.summarize.supported) == (True, True)
        assert told.context_management.compact_20260112.supported is True
        assert (
            claude.beta.models.retrieve("claude-haiku-4-5", betas=[ON_DEMAND]).capabilities.compaction.supported
            is False
        )
        assert claude.beta.models.retrieve("claude-opus-5-5").capabilities.compaction is None


class TestClouds:
    def test_bedrock(self, simulator):
        client = anthropic.AnthropicBedrock(
            base_url=simulator.url, api_key="any", aws_region="us-east-1", max_retries=0
        )
        request = {**MANAGED, "messages": [*LONG, {"role": "assistant", "content": "Yes."}, ASK]}
        message = client.beta.messages.create(**request)
        assert [block.type for block in message.content] == ["compaction", "text"]
        events = list(client.beta.messages.create(**request, stream=True))
        assert "compaction_delta" in [event.delta.type for event in events if event.type == "content_block_delta"]
        with pytest.raises(anthropic.BadRequestError, match="The model returned the following errors: prompt is too"):
            client.beta.messages.create(**MANAGED, messages=[{"role": "user", "content": "x" * 40_000}])

    def test_foundry(self, simulator):
        client = anthropic.AnthropicFoundry(base_url=simulator.url + "/anthropic", api_key="any", max_retries=0)
        message = client.beta.messages.create(**COMPACT, messages=HISTORY)
        assert message.stop_reason == "compaction"
        told = client.beta.messages.create(**MODEL, betas=[ON_DEMAND], messages=[message.to_param(), ASK])
        assert said(told) == "I know FACT-01, FACT-02."

    def test_claude_on_google_cloud(self, simulator):
        client = anthropic.AnthropicVertex(
            base_url=simulator.url + "/v1", access_token="any", project_id="p", region="us-east5", max_retries=0
        )
        self.both(client)

    def test_claude_platform_on_aws(self, simulator):
        client = anthropic.AnthropicAWS(
            base_url=simulator.url, api_key="any", aws_region="us-east-1", workspace_id="w", max_retries=0
        )
        self.both(client)

    def both(self, client):
        """Compaction on demand, and at a threshold."""
        message = client.beta.messages.create(**COMPACT, messages=HISTORY)
        assert message.stop_reason == "compaction"
        told = client.beta.messages.create(**MODEL, betas=[ON_DEMAND], messages=[message.to_param(), ASK])
        assert said(told) == "I know FACT-01, FACT-02."
        request = {**MANAGED, "messages": [*LONG, {"role": "assistant", "content": "Yes."}, ASK]}
        assert [block.type for block in client.beta.messages.create(**request).content] == ["compaction", "text"]

    def test_bedrocks_messages_api(self, simulator):
        client = anthropic.AnthropicBedrockMantle(
            base_url=simulator.url, api_key="any", aws_region="us-east-1", max_retries=0
        )
        request = {**MANAGED, "messages": [*LONG, {"role": "assistant", "content": "Yes."}, ASK]}
        assert [block.type for block in client.beta.messages.create(**request).content] == ["compaction", "text"]
