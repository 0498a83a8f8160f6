"""What each provider is known to answer, by whose rule it is known: wordings as reported, see `tests/corpus`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidegate.overflow import Refusal, classify
from tidegate.providers import load

CATALOGUE = load()
FILES = Path(__file__).parents[2] / "providers"
KEEP = "The number of tokens to keep from the initial prompt is greater than the context length"


def said(message: str, **more: str) -> str:
    extra = "".join(f',"{key}":"{value}"' for key, value in more.items())
    return f'{{"error":{{"message":"{message}"{extra}}}}}'


# provider, status, body, kind, rule, its file, input tokens, window or input limit
TABLE = [
    ("bedrock", 400, '{"message":"Input is too long for requested model."}',
     "overflow", "bedrock-too-long", "bedrock", None, None),
    ("bedrock", 400, '{"message":"Too many input tokens. Max input tokens: 128000, request input token count: 140000"}',
     "overflow", "bedrock-too-long", "bedrock", 140_000, 128_000),
    ("bedrock", 400, said("prompt tokens (400007) exceed model maximum (278528) for openai.gpt-5.5"),
     "overflow", "bedrock-prompt-tokens", "bedrock", 400_007, 278_528),
    ("bedrock", 400, '{"message":"The maximum tokens you requested exceeds the model limit of 10000."}',
     "output_limit", "output-cap-requested", "bedrock", None, None),
    ("bedrock", 400, '{"message":"The model returned the following errors: prompt is too long: 208311 tokens > 200000 '
     'maximum"}', "overflow", "anthropic-prompt-too-long", "anthropic", 208_311, 200_000),
    ("bedrock", 429, '{"message":"Too many tokens per day, please wait before trying again."}',
     "rate_limit", "rate-words", "_shared", None, None),
    ("cerebras", 400, '{"message":"Please reduce the length of the messages or completion. Current length is 8530 '
     'while limit is 8192"}', "overflow", "cerebras-current-length", "cerebras", 8_530, 8_192),
    ("huggingface", 400, '{"message":"Please reduce the length of the messages or completion. Current length is 8677 '
     'while limit is 8192"}', "overflow", "cerebras-current-length", "cerebras", 8_677, 8_192),
    ("huggingface", 422, '{"error":"Input validation error: `inputs` must have less than 4096 tokens. Given: 5000",'
     '"error_type":"validation"}', "overflow", "tgi-inputs", "huggingface", 5_000, 4_096),
    ("huggingface", 422, '{"error":"Input validation error: `inputs` tokens + `max_new_tokens` must be <= 4097. Given: '
     '80125 `inputs` tokens and 4096 `max_new_tokens`","error_type":"validation"}',
     "overflow", "tgi-inputs-and-new", "huggingface", 80_125, 4_097),
    ("cohere", 400, '{"message":"too many tokens: total number of tokens in the prompt cannot exceed 8192 - received '
     '9000."}', "overflow", "cohere-prompt", "cohere", 9_000, 8_192),
    ("cohere", 400, '{"message":"too many tokens: size limit exceeded by 713295 tokens. Try using shorter or fewer '
     'inputs. The limit for this model is 288000 tokens."}', "overflow", "cohere-size", "cohere", 1_001_295, 288_000),
    ("cohere", 400, '{"message":"too many tokens: total number of tokens (prompt and prediction) cannot exceed 2048 - '
     'received 6354. Try using a shorter prompt or a smaller max_tokens value."}',
     "overflow", "cohere-prompt-and-prediction", "cohere", None, 2_048),
    ("dashscope", 400, said("<400> InternalError.Algo.InvalidParameter: Range of input length should be [1, 245760]",
                            code="invalid_parameter_error"),
     "overflow", "dashscope-input-range", "dashscope", None, 245_760),
    ("fireworks", 400, said("The prompt is too long: 365407, model maximum context length: 262143",
                            code="invalid_request_error"),
     "overflow", "fireworks-prompt", "fireworks", 365_407, 262_143),
    ("github-copilot", 400, '{"error":{"message":"prompt token count of 65446 exceeds the limit of 64000","param":"",'
     '"code":"","type":""}}', "overflow", "copilot-prompt-count", "github-copilot", 65_446, 64_000),
    ("lmstudio", 400, '{"error":"Trying to keep the first 15857 tokens when context the overflows. However, the model '
     'is loaded with context length of only 4096 tokens, which is not enough."}',
     "overflow", "lmstudio-keep-first", "lmstudio", 15_857, 4_096),
    ("lmstudio", 400, '{"error":"Cannot truncate prompt with n_keep (11378) >= n_ctx (4096)"}',
     "overflow", "lmstudio-n-keep", "lmstudio", 11_378, 4_096),
    ("lmstudio", 400, f'{{"error":"{KEEP}. Try to load the model with a larger context length"}}',
     "overflow", "lmstudio-keep-greater", "lmstudio", None, None),
    ("lmstudio", 400, f'{{"error":"{KEEP} (n_keep: 23678>= n_ctx: 9472). Try to load the model with a larger one."}}',
     "overflow", "lmstudio-keep-greater", "lmstudio", 23_678, 9_472),
    ("lmstudio", 400, '{"error":"Input length 6491 exceeds context length 1500"}',
     "overflow", "lmstudio-input-length", "lmstudio", 6_491, 1_500),
    ("minimax", 400, said("invalid params, context window exceeds limit (2013)", type="bad_request_error"),
     "overflow", "minimax-window", "minimax", None, None),
    ("minimax", 200, '{"base_resp":{"status_code":2013,"status_msg":"invalid params, context window exceeds limit"}}',
     "overflow", "minimax-window", "minimax", None, None),
    ("moonshot", 400, said("Invalid request: Your request exceeded model token limit: 262144 (requested: 269030)"),
     "overflow", "kimi-token-limit", "moonshot", 269_030, 262_144),
    ("moonshot", 400, said("Input token length too long"), "overflow", "kimi-input-length", "moonshot", None, None),
    ("moonshot", 400, said("model max length exceeded, max length: 8192"),
     "output_limit", "output-cap-max-length", "moonshot", None, None),
    ("moonshot", 400, said("max_tokens (131072) exceeds model's maximum output tokens (65536) for model kimi-k2"),
     "output_limit", "output-cap-exceeds", "moonshot", None, None),
    ("sglang", 400, said("The input (61709 tokens) is longer than the model's context length (40960 tokens)."),
     "overflow", "sglang-longer", "sglang", 61_709, 40_960),
    ("sglang", 400, said("Requested token count exceeds the model's maximum context length of 64000 tokens. You "
                         "requested a total of 71897 tokens: 7897 tokens from the input messages and 64000 tokens for "
                         "the completion."), "output_limit", "sglang-total", "sglang", 7_897, 64_000),
    ("together", 400, said("Input token count + max_tokens parameter must be less than the context length of the model "
                           "being queried."), "overflow", "together-sum", "together", None, None),
    ("together", 400, said("The input (516368 tokens) is longer than the model's context length (262144 tokens)."),
     "overflow", "sglang-longer", "sglang", 516_368, 262_144),
    ("vercel", 400, said("Input too long: 518063 input tokens, limit is 262144 for this model"),
     "overflow", "vercel-input-too-long", "vercel", 518_063, 262_144),
    ("zai", 400, said("tokens in request more than max tokens allowed"),
     "overflow", "zai-request-tokens", "zai", None, None),
    ("zai", 400, said("Prompt exceeds max length", code="1261"), "overflow", "overflow-1261", "_shared", None, None),
    # in the words of others
    ("azure", 400, said("Input tokens exceed the configured limit of 272000 tokens. Your messages resulted in 301213 "
                        "tokens. Please reduce the length of the messages."),
     "overflow", "openai-configured-limit", "openai", 301_213, 272_000),
    ("foundry", 400, said("Input tokens exceed the configured limit of 272000 tokens. Your messages resulted in 301213 "
                          "tokens. Please reduce the length of the messages."),
     "overflow", "openai-configured-limit", "openai", 301_213, 272_000),
    ("vertex-anthropic", 413, '{"type":"error","error":{"type":"invalid_request_error","message":"Prompt is too long"}'
     ',"request_id":"req_vrtx_1"}', "overflow", "anthropic-prompt-too-long-bare", "anthropic", None, None),
    ("nvidia", 400, said("You passed 170753 input tokens and requested 32000 output tokens. However, the model's "
                         "context length is only 202752 tokens, resulting in a maximum input length of 170752 tokens."),
     "overflow", "vllm-passed", "vllm", None, 202_752),
    ("litellm-proxy", 429, said("No deployments available for selected model, Try again in 5 seconds.",
                               type="None", code="429"),
     "server", "server-no-deployment", "_shared", None, None),
]  # fmt: skip


@pytest.mark.parametrize(
    ("provider", "status", "body", "kind", "rule", "file", "tokens", "window"),
    TABLE,
    ids=[f"{row[0]}-{row[4]}-{n}" for n, row in enumerate(TABLE)],
)
def test_what_a_provider_answers(
    provider: str, status: int, body: str, kind: str, rule: str, file: str, tokens: int | None, window: int | None
) -> None:
    verdict = classify(Refusal(status, body), CATALOGUE.rules(provider))
    assert (verdict.kind, verdict.evidence.rule, verdict.evidence.source) == (kind, rule, f"{file}.toml")
    assert (verdict.input_tokens, verdict.window or verdict.input_limit) == (tokens, window)


@pytest.mark.parametrize("name", CATALOGUE.names)
def test_a_file_has_rules_of_its_own_or_says_whose_serve(name: str) -> None:
    text = (FILES / f"{name}.toml").read_text("utf-8")
    assert CATALOGUE.get(name).refusals or "\n# Refusals: " in text
