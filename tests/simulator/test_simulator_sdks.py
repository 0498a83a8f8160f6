"""The real SDKs against a running simulator, over a socket, as they come."""

import json

import anthropic
import openai
import pytest

from tidegate.simulator import SimulatorSettings, serve

SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
GO = "Read the files. FACT-01 is that the port is 8484."


@pytest.fixture(scope="module")
def running():
    with serve(SimulatorSettings(window=6000, tool_rounds=2, parallel_calls=2)) as simulator:
        yield simulator


@pytest.fixture
def simulator(running):
    yield running
    assert running.state.violations == []
    running.reset()


@pytest.fixture
def chats(simulator):
    with openai.OpenAI(base_url=simulator.url + "/v1", api_key="sk-any", max_retries=0) as client:
        yield client


@pytest.fixture
def claude(simulator):
    with anthropic.Anthropic(base_url=simulator.url, api_key="any", max_retries=0) as client:
        yield client


CHAT_TOOLS = [{"type": "function", "function": {"name": "read_file", "parameters": SCHEMA}}]
RESPONSES_TOOLS = [{"type": "function", "name": "read_file", "parameters": SCHEMA, "strict": False}]
MESSAGES_TOOLS = [{"name": "read_file", "input_schema": SCHEMA}]


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "streamed"])
class TestAgents:
    """A tool loop, then the question what is remembered, everything sent back as the SDK gave it."""

    def test_chat(self, simulator, chats, streamed):
        history = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": GO}]
        asked = 0
        for _ in range(10):
            request = {"model": "gpt-4.1", "messages": history, "tools": CHAT_TOOLS}
            if streamed:
                with chats.chat.completions.stream(**request, stream_options={"include_usage": True}) as stream:
                    completion = stream.get_final_completion()
            else:
                completion = chats.chat.completions.create(**request)
            message = completion.choices[0].message
            assert completion.usage.prompt_tokens == simulator.state.records[-1].input_tokens
            history.append(message.model_dump(exclude_none=True, exclude={"parsed"}))
            if not message.tool_calls:
                break
            for call in message.tool_calls:
                assert "path" in json.loads(call.function.arguments)
                history.append({"role": "tool", "tool_call_id": call.id, "content": "print(1)"})
                asked += 1
        assert (asked, message.content) == (4, "Done after 4 tool results, at item 8.")
        history.append({"role": "user", "content": "What do you know?"})
        told = chats.chat.completions.create(model="gpt-4.1", messages=history)
        assert told.choices[0].message.content == "I know FACT-01."

    @pytest.mark.parametrize("store", [True, False], ids=["stored", "sealed"])
    def test_responses(self, simulator, chats, streamed, store):
        history = [{"role": "user", "content": GO}]
        asked = 0
        for _ in range(10):
            request = {
                "model": "gpt-5.1",
                "instructions": "Be brief.",
                "input": history,
                "tools": RESPONSES_TOOLS,
                "reasoning": {"effort": "low"},
                "store": store,
                "include": [] if store else ["reasoning.encrypted_content"],
            }
            if streamed:
                with chats.responses.stream(**request) as stream:
                    numbers = [event.sequence_number for event in stream]
                    response = stream.get_final_response()
                assert numbers == list(range(len(numbers)))
            else:
                response = chats.responses.create(**request)
            assert response.output[0].type == "reasoning"
            assert response.usage.input_tokens == simulator.state.records[-1].input_tokens
            history += [item.model_dump(exclude_none=True, exclude={"parsed_arguments"}) for item in response.output]
            calls = [item for item in response.output if item.type == "function_call"]
            if not calls:
                break
            for call in calls:
                history.append({"type": "function_call_output", "call_id": call.call_id, "output": "print(1)"})
                asked += 1
        assert (asked, response.output_text) == (4, "Done after 4 tool results, at item 11.")
        if store:
            told = chats.responses.create(model="gpt-5.1", input="What do you know?", previous_response_id=response.id)
            assert told.output_text == "I know FACT-01."

    @pytest.mark.parametrize("model", ["claude-sonnet-4-6", "claude-sonnet-5-5"])
    def test_messages(self, simulator, claude, streamed, model):
        history = [{"role": "user", "content": GO}]
        asked = 0
        for _ in range(10):
            request = {
                "model": model,
                "max_tokens": 2000,
                "system": "Be brief.",
                "messages": history,
                "tools": MESSAGES_TOOLS,
                "thinking": {"type": "adaptive"},
            }
            if streamed:
                with claude.messages.stream(**request) as stream:
                    message = stream.get_final_message()
            else:
                message = claude.messages.create(**request)
            assert message.content[0].type == "thinking"
            assert message.usage.input_tokens == simulator.state.records[-1].input_tokens
            history.append({"role": "assistant", "content": message.content})
            uses = [block for block in message.content if block.type == "tool_use"]
            if not uses:
                break
            results = [{"type": "tool_result", "tool_use_id": use.id, "content": "print(1)"} for use in uses]
            history.append({"role": "user", "content": results})
            asked += len(uses)
        assert (asked, message.content[1].text) == (4, "Done after 4 tool results, at item 5.")
        history.append({"role": "user", "content": "What do you know?"})
        told = claude.messages.create(**request | {"messages": history})
        assert told.content[1].text == "I know FACT-01."


class TestAsync:
    async def test_openai(self, simulator):
        async with openai.AsyncOpenAI(base_url=simulator.url, api_key="sk-any", max_retries=0) as client:
            chunks = await client.chat.completions.create(
                model="gpt-4.1", messages=[{"role": "user", "content": "Hello."}], stream=True
            )
            said = "".join([chunk.choices[0].delta.content or "" async for chunk in chunks])
            response = await client.responses.create(model="gpt-5.1", input="Hello.")
        assert said == response.output_text == "You said: Hello."

    async def test_anthropic(self, simulator):
        async with anthropic.AsyncAnthropic(base_url=simulator.url, api_key="any", max_retries=0) as client:
            request = {
                "model": "claude-sonnet-5-5",
                "max_tokens": 50,
                "messages": [{"role": "user", "content": "Hello."}],
            }
            async with client.messages.stream(**request) as stream:
                said = "".join([text async for text in stream.text_stream])
            message = await client.messages.create(**request)
        assert said == message.content[0].text == "You said: Hello."


class TestErrors:
    LONG = "x" * 40_000

    def test_overflow(self, chats, claude):
        with pytest.raises(openai.BadRequestError, match="maximum context length is 6000 tokens") as caught:
            chats.chat.completions.create(model="gpt-4.1", messages=[{"role": "user", "content": self.LONG}])
        assert caught.value.code == "context_length_exceeded"
        with pytest.raises(openai.BadRequestError, match="exceeds the context window"):
            chats.responses.create(model="gpt-5.1", input=self.LONG)
        with pytest.raises(anthropic.BadRequestError, match=r"prompt is too long: \d+ tokens > 6000 maximum"):
            claude.messages.create(
                model="claude-sonnet-5-5", max_tokens=9, messages=[{"role": "user", "content": self.LONG}]
            )

    def test_overflow_inside_a_stream(self):
        with serve(SimulatorSettings(window=500, overflow_in_stream=True)) as other:
            client = openai.OpenAI(base_url=other.url, api_key="any", max_retries=0)
            with pytest.raises(openai.APIError, match="maximum context length"):
                list(
                    client.chat.completions.create(
                        model="gpt-4.1", messages=[{"role": "user", "content": self.LONG}], stream=True
                    )
                )
            with pytest.raises(openai.APIError, match="exceeds the context window"):
                list(client.responses.create(model="gpt-5.1", input=self.LONG, stream=True))
            claude = anthropic.Anthropic(base_url=other.url, api_key="any", max_retries=0)
            with pytest.raises(anthropic.APIError, match="prompt is too long"):
                list(
                    claude.messages.create(
                        model="m", max_tokens=9, messages=[{"role": "user", "content": self.LONG}], stream=True
                    )
                )

    def test_wrong_key(self):
        with serve(SimulatorSettings(keys=frozenset({"right"}))) as other:
            with pytest.raises(openai.AuthenticationError):
                openai.OpenAI(base_url=other.url, api_key="wrong", max_retries=0).models.list()
            with pytest.raises(anthropic.AuthenticationError, match="invalid x-api-key"):
                anthropic.Anthropic(base_url=other.url, api_key="wrong", max_retries=0).models.list()
            assert openai.OpenAI(base_url=other.url, api_key="right").models.list().data


class TestOtherEndpoints:
    def test_counting(self, chats, claude):
        counted = chats.responses.input_tokens.count(model="gpt-5.1", input="Hello.", instructions="Be brief.")
        response = chats.responses.create(model="gpt-5.1", input="Hello.", instructions="Be brief.")
        assert counted.input_tokens == response.usage.input_tokens
        request = {"model": "claude-sonnet-5-5", "messages": [{"role": "user", "content": "Hello."}]}
        counted = claude.messages.count_tokens(**request)
        assert counted.input_tokens == claude.messages.create(**request, max_tokens=9).usage.input_tokens

    def test_models_tell_the_window(self, chats, claude):
        (model,) = chats.models.list().data
        assert (model.id, model.context_window) == ("simulated", 6000)
        (model,) = claude.models.list().data
        assert (claude.models.retrieve("simulated").max_input_tokens, model.type) == (6000, "model")
        with pytest.raises(openai.NotFoundError):
            chats.models.retrieve("other")
