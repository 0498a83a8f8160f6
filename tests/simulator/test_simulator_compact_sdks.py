"""The real openai SDK against the simulator's own compaction, as it comes: sync and async, whole and streamed."""

import openai
import pytest

from tidegate.simulator import ResponsesCompaction, SimulatorSettings, Step, serve

SPOKEN = [
    {"role": "user", "content": "FACT-01 is the port."},
    {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "a", "output": "FACT-02 is in the file."},
]
ASK = {"role": "user", "content": "What do you know?"}
TOOL = {"type": "function", "name": "read_file", "parameters": {"type": "object"}, "strict": False}
TRIGGER = {"type": "compaction_trigger"}
BOTH = "I know FACT-01, FACT-02."


@pytest.fixture(scope="module")
def running():
    orgs = {"sk-a": "org-a", "sk-b": "org-b"}
    with serve(SimulatorSettings(window=6000, tool_rounds=2, orgs=orgs)) as simulator:
        yield simulator


@pytest.fixture
def simulator(running):
    settings = running.app.settings
    yield running
    running.app.configure(settings)
    running.reset()


@pytest.fixture
def client(simulator):
    with openai.OpenAI(base_url=simulator.url + "/v1", api_key="sk-a", max_retries=0) as made:
        yield made


def plain(items):
    return [item.model_dump(exclude_none=True, exclude={"parsed_arguments"}, warnings=False) for item in items]


class TestSync:
    def test_compact_and_go_on(self, simulator, client):
        whole = client.responses.compact(model="gpt-5.1", input=SPOKEN, instructions="Be brief.")
        assert (whole.object, whole.output[-1].type) == ("response.compaction", "compaction")
        assert whole.usage.total_tokens == whole.usage.input_tokens + whole.usage.output_tokens
        again = client.responses.create(model="gpt-5.1", input=[*plain(whole.output), ASK])
        assert again.output_text == BOTH
        assert simulator.state.violations == []

    def test_compact_a_stored_response(self, client):
        first = client.responses.create(model="gpt-5.1", input="FACT-01 is the port.")
        whole = client.responses.compact(model="gpt-5.1", previous_response_id=first.id)
        assert (
            client.responses.create(model="gpt-5.1", input=[*plain(whole.output), ASK]).output_text == "I know FACT-01."
        )
        with pytest.raises(openai.BadRequestError) as caught:
            client.responses.create(model="gpt-5.1", input=[ASK], previous_response_id=whole.id)
        assert caught.value.code == "previous_response_not_found"

    def test_trigger(self, client):
        request = {"model": "gpt-5.1", "input": [*SPOKEN, TRIGGER], "store": False}
        with client.responses.stream(**request) as stream:
            kinds = [event.type for event in stream]
            response = stream.get_final_response()
        assert "response.compaction.compacting" in kinds
        (item,) = plain(response.output)
        again = client.responses.create(model="gpt-5.1", input=[SPOKEN[0], item, ASK])
        assert again.output_text == BOTH

    def test_beside_an_answer(self, client):
        request = {
            "model": "gpt-5.1",
            "input": [{"role": "user", "content": "FACT-01 " + "x" * 4000}],
            "context_management": [{"type": "compaction", "compact_threshold": 1000}],
        }
        whole = client.responses.create(**request)
        assert [item.type for item in whole.output] == ["compaction", "message"]
        events = list(client.responses.create(**request, stream=True))
        done = [event.item for event in events if event.type == "response.output_item.done"]
        again = client.responses.create(model="gpt-5.1", input=[*plain(done), ASK])
        assert again.output_text == "I know FACT-01."

    def test_counts_what_an_item_stands_for(self, client):
        whole = client.responses.compact(model="gpt-5.1", input=SPOKEN)
        window = [*plain(whole.output), ASK]
        counted = client.responses.input_tokens.count(model="gpt-5.1", input=window)
        assert counted.input_tokens == client.responses.create(model="gpt-5.1", input=window).usage.input_tokens

    def test_conversations(self, client):
        made = client.conversations.create(items=[{"type": "message", "role": "user", "content": "FACT-01"}])
        told = client.responses.create(model="gpt-5.1", input=[ASK], conversation=made.id)
        assert (told.output_text, told.conversation.id) == ("I know FACT-01.", made.id)
        assert len(client.conversations.items.list(made.id).data) == 3
        assert client.conversations.delete(made.id).deleted
        with pytest.raises(openai.NotFoundError):
            client.responses.create(model="gpt-5.1", input=[ASK], conversation=made.id)

    def test_stored_responses(self, client):
        whole = client.responses.create(model="gpt-5.1", input="Hello.")
        assert client.responses.retrieve(whole.id).output_text == whole.output_text
        client.responses.delete(whole.id)
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(whole.id)

    def test_errors(self, simulator, client):
        whole = client.responses.compact(model="gpt-5.1", input=SPOKEN)
        with openai.OpenAI(base_url=simulator.url + "/v1", api_key="sk-b", max_retries=0) as other:
            for call in (other.responses.create, other.responses.compact, other.responses.input_tokens.count):
                with pytest.raises(openai.BadRequestError) as caught:
                    call(model="gpt-5.1", input=plain(whole.output))
                assert caught.value.code == "invalid_encrypted_content"
        with pytest.raises(openai.BadRequestError) as caught:
            client.responses.compact(model="gpt-5.1", input="x" * 40_000)
        assert caught.value.code == "context_length_exceeded"
        with pytest.raises(openai.BadRequestError, match=r"Unknown parameter: 'store'\."):
            client.responses.compact(model="gpt-5.1", input="x", extra_body={"store": False})
        simulator.script(Step(do="hang", path="compact"), Step(do="cut", path="compact"))
        with pytest.raises(openai.APITimeoutError):
            client.responses.compact(model="gpt-5.1", input="x", timeout=0.1)
        with pytest.raises(openai.APIConnectionError):
            client.responses.compact(model="gpt-5.1", input="x")

    def test_gateways_without_it(self, simulator, client):
        simulator.configure(responses_compaction=ResponsesCompaction(path="404-text"))
        with pytest.raises(openai.NotFoundError):
            client.responses.compact(model="gpt-5.1", input="x")

    def test_twenty_turns_forget_nothing(self, simulator, client):
        simulator.configure(responses_compaction=ResponsesCompaction(user_tokens=0))
        history = []
        for turn in range(20):
            history.append({"role": "user", "content": f"FACT-{turn:02} {'x' * 400}"})
            for _ in range(4):
                whole = client.responses.create(
                    model="gpt-5.1",
                    input=history,
                    tools=[
                        {"type": "function", "name": "read_file", "parameters": {"type": "object"}, "strict": False}
                    ],
                    reasoning={"effort": "low"},
                    include=["reasoning.encrypted_content"],
                    store=False,
                )
                history += plain(whole.output)
                calls = [item for item in whole.output if item.type == "function_call"]
                if not calls:
                    break
                history.append({"type": "function_call_output", "call_id": calls[0].call_id, "output": "x" * 800})
            if whole.usage.input_tokens > 4000:
                history = plain(client.responses.compact(model="gpt-5.1", input=history).output)
        told = client.responses.create(model="gpt-5.1", input=[*history, ASK])
        assert told.output_text == f"I know {', '.join(f'FACT-{turn:02}' for turn in range(20))}."
        assert simulator.state.violations == []


class TestAsync:
    async def test_compact_trigger_and_count(self, simulator):
        async with openai.AsyncOpenAI(base_url=simulator.url + "/v1", api_key="sk-a", max_retries=0) as client:
            whole = await client.responses.compact(model="gpt-5.1", input=SPOKEN)
            window = [*plain(whole.output), ASK]
            counted = await client.responses.input_tokens.count(model="gpt-5.1", input=window)
            told = await client.responses.create(model="gpt-5.1", input=window)
            assert (told.output_text, told.usage.input_tokens) == (BOTH, counted.input_tokens)
            stream = await client.responses.create(model="gpt-5.1", input=[*window, TRIGGER], stream=True, store=False)
            done = [event.item async for event in stream if event.type == "response.output_item.done"]
            assert [item.type for item in done] == ["compaction"]
        assert simulator.state.violations == []

    async def test_codex_and_azure(self, simulator):
        url = simulator.url + "/backend-api/codex"
        async with openai.AsyncOpenAI(base_url=url, api_key="sk-a", max_retries=0) as client:
            async with client.responses.stream(model="gpt-5.1", input=[*SPOKEN, TRIGGER], store=False) as stream:
                done = [event.item async for event in stream if event.type == "response.output_item.done"]
                assert (await stream.get_final_response()).output == []
            assert [item.type for item in done] == ["compaction"]
            with pytest.raises(openai.NotFoundError):
                await client.responses.compact(model="gpt-5.1", input=SPOKEN)
        url = simulator.url + "/openai/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key="sk-a", max_retries=0) as client:
            whole = await client.responses.compact(model="gpt-5.1", input=SPOKEN)
            told = await client.responses.create(model="gpt-5.1", input=[*plain(whole.output), ASK])
        assert told.output_text == BOTH

    async def test_xai(self, simulator):
        simulator.configure(profile="xai")
        async with openai.AsyncOpenAI(base_url=simulator.url + "/v1", api_key="sk-a", max_retries=0) as client:
            whole = await client.responses.compact(model="grok-4.5", input=SPOKEN)
            told = await client.responses.create(model="grok-4.5", input=[*plain(whole.output), ASK])
            assert (len(whole.output), told.output_text) == (1, BOTH)
            with pytest.raises(openai.UnprocessableEntityError):
                await client.responses.create(model="grok-4.5", input=[*SPOKEN, TRIGGER])
