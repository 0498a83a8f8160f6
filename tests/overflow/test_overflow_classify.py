"""What a refusal means: the order of evidence, near twins, wrappers, echoes, and bodies sent to break it."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.overflow import Refusal, Sent, Verdict, classify
from tidegate.providers import load

CATALOGUE = load()
GENERIC = CATALOGUE.rules("generic")

TOO_LONG = "prompt is too long: 215692 tokens > 200000 maximum"
FITS = "input length and `max_tokens` exceed context limit: 120000 + 90000 > 200000, decrease input length"


def judge(status: int | None, body: str | bytes, provider: str = "generic", **kwargs: object) -> Verdict:
    sent = kwargs.pop("sent", None)
    return classify(Refusal(status, body, **kwargs), CATALOGUE.rules(provider), sent=sent)  # type: ignore[arg-type]


def error(message: str, **fields: object) -> str:
    return json.dumps({"error": {"message": message, **fields}})


# ── the order of evidence ─────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("status", "body", "kind", "action"),
    [
        (400, error("refused", code="context_length_exceeded"), "overflow", "compact"),
        (429, error("refused", code="context_length_exceeded"), "overflow", "compact"),
        (403, error("refused", code="context_length_exceeded"), "overflow", "compact"),
        (401, error(TOO_LONG, code="context_length_exceeded"), "auth", "none"),
        (429, error(TOO_LONG), "rate_limit", "wait"),
        (402, error("Prompt tokens limit exceeded: 3944 > 3796"), "quota", "none"),
        (403, error(TOO_LONG), "auth", "none"),
        (500, error("Internal server error: " + TOO_LONG), "overflow", "compact"),
        (413, error(TOO_LONG), "overflow", "compact"),
        (None, TOO_LONG, "overflow", "compact"),
        (529, error("Overloaded", type="overloaded_error"), "server", "none"),
        (503, "upstream connect error", "server", "none"),
        (404, error("The model `x` does not exist"), "other_4xx", "none"),
        (413, "Payload Too Large", "payload_bytes", "shrink_bytes"),
        (400, error("could not be verified", code="invalid_encrypted_content"), "stale_artifact", "drop_artifact"),
        (400, '{"code":"x","error":"Could not decode the compaction blob."}', "stale_artifact", "drop_artifact"),
        (
            400,
            error("messages.1.content.0: Invalid `signature` in `thinking` block"),
            "stale_artifact",
            "drop_artifact",
        ),
        (
            400,
            error("messages.3.content.0: Invalid `data` in `redacted_thinking` block"),
            "stale_artifact",
            "drop_artifact",
        ),
        (
            400,
            error("messages.5.content.0: `thinking` blocks in the latest assistant message cannot be modified."),
            "other_4xx",
            "none",
        ),
        (
            400,
            json.dumps({"error": {"message": "…", "details": {"error_code": "compaction_signature_invalid"}}}),
            "stale_artifact",
            "drop_artifact",
        ),
        (400, error("Unknown parameter: 'input[1].status'.", code="unknown_parameter"), "unsupported", "none"),
        (400, error(FITS), "output_limit", "clamp_output"),
    ],
)
def test_codes_come_before_words_and_words_before_the_status(status: int, body: str, kind: str, action: str) -> None:
    verdict = judge(status, body)
    assert (verdict.kind, verdict.action) == (kind, action), verdict.evidence


def test_a_verdict_names_its_rule_its_file_and_the_words() -> None:
    evidence = judge(400, error(TOO_LONG), "openai").evidence
    assert (evidence.rule, evidence.source) == ("anthropic-prompt-too-long", "anthropic.toml")
    assert evidence.matched == TOO_LONG


def test_the_words_shown_are_never_more_than_a_line() -> None:
    verdict = judge(400, error("prompt is too long " + "secret " * 1000 + TOO_LONG))
    assert len(verdict.evidence.matched) <= 120


def test_a_providers_own_rule_comes_before_the_shared_ones() -> None:
    body = error("Please reduce the length of the messages or completion.")
    assert judge(400, body, "groq").evidence.source == "groq.toml"


def test_without_rules_only_the_status_is_judged() -> None:
    assert classify(Refusal(429, TOO_LONG)).kind == "rate_limit"
    assert classify(Refusal(400, TOO_LONG)).kind == "other_4xx"


# ── numbers ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_an_output_that_does_not_fit_is_clamped_to_what_does() -> None:
    verdict = judge(400, error(FITS), "anthropic")
    assert (verdict.kind, verdict.output_limit, verdict.window, verdict.input_tokens) == (
        "output_limit",
        80_000,
        200_000,
        120_000,
    )
    assert verdict.runner_up == "overflow"


@pytest.mark.parametrize(
    ("prompt", "asked", "kind"),
    [
        (120_000, 90_000, "output_limit"),
        (179_000, 90_000, "output_limit"),
        (199_000, 20_000, "overflow"),
        (190_000, 20_000, "overflow"),
        (210_000, 1_000, "overflow"),
    ],
)
def test_a_prompt_that_leaves_no_room_is_an_overflow(prompt: int, asked: int, kind: str) -> None:
    body = error(f"input length and `max_tokens` exceed context limit: {prompt} + {asked} > 200000")
    assert judge(400, body).kind == kind


def test_tool_schemas_count_as_input() -> None:
    body = error(
        "This endpoint's maximum context length is 131072 tokens. However, you requested about 212745 tokens "
        "(122163 of text input, 58582 of tool input, 32000 in the output)."
    )
    verdict = judge(400, body, "openrouter")
    assert (verdict.input_tokens, verdict.output_requested, verdict.window) == (180_745, 32_000, 131_072)


def test_a_floor_is_no_size_and_what_was_sent_decides() -> None:
    body = error(
        "This model's maximum context length is 32768 tokens. However, you requested 32000 output tokens and your "
        "prompt contains at least 769 input tokens, for a total of at least 32769 tokens."
    )
    assert judge(400, body, "vllm").input_tokens is None
    assert judge(400, body, "vllm", sent=Sent(tokens=700, window=32_768)).kind == "output_limit"
    assert judge(400, body, "vllm", sent=Sent(tokens=40_000, window=32_768)).kind == "overflow"


def test_numbers_in_fields_are_read() -> None:
    body = error("too big", type="exceed_context_size_error", n_prompt_tokens=5000, n_ctx=4096)
    verdict = judge(400, body, "llamacpp")
    assert (verdict.input_tokens, verdict.window) == (5000, 4096)


@pytest.mark.parametrize(("limit", "requested", "admission"), [(30_000, 342_389, True), (30_000, 12_528, False)])
def test_a_request_above_the_whole_allowance_is_told_apart(limit: int, requested: int, admission: bool) -> None:
    text = f"Request too large for gpt-4o on tokens per min (TPM): Limit {limit}, Requested {requested}."
    verdict = judge(429, error(text, type="tokens", code="rate_limit_exceeded"), "openai")
    assert (verdict.kind, verdict.admission, verdict.window) == ("rate_limit", admission, None)
    assert (verdict.allowance, verdict.requested) == ((limit, requested) if admission else (None, None))


@pytest.mark.parametrize(
    ("headers", "text", "seconds"),
    [
        ({"Retry-After": "7"}, "rate limit reached", 7.0),
        ({"retry-after-ms": "1500"}, "rate limit reached", 1.5),
        ({}, "Rate limit reached. Please try again in 11.054s.", 11.054),
        ({}, "Rate limit reached. Please try again in 9m38.016s.", 578.016),
        ({}, "Rate limit reached. Please retry after 7 seconds.", 7.0),
        ({"retry-after": "Wed, 21 Oct"}, "rate limit reached", None),
    ],
)
def test_the_wait_is_read_from_headers_or_words(headers: dict[str, str], text: str, seconds: float | None) -> None:
    assert judge(429, error(text), headers=headers).retry_after == pytest.approx(seconds)


@pytest.mark.parametrize("said", ["nan", "inf", "-inf", "-5", "1e999", "soon"])
@pytest.mark.parametrize("name", ["retry-after", "Retry-After-Ms"])
def test_a_wait_that_is_none_is_not_told(name: str, said: str) -> None:
    assert judge(429, error("rate limit reached"), headers={name: said}).retry_after is None


@pytest.mark.parametrize(
    ("sent", "kind", "certain"),
    [
        (Sent(tokens=300), "other_4xx", False),
        (Sent(tokens=20_000), "other_4xx", False),
        (Sent(tokens=300, media=2), "overflow", True),  # of which no estimate knows the size
        (Sent(tokens=70_000), "overflow", True),
        (Sent(tokens=3_000, window=4_096), "overflow", True),
        (Sent(tokens=213_000), "overflow", True),
        (Sent(), "overflow", True),
        (None, "overflow", True),
    ],
)
def test_a_size_far_above_what_was_sent_is_of_something_else(sent: Sent | None, kind: str, certain: bool) -> None:
    verdict = judge(400, error(TOO_LONG), sent=sent)
    assert (verdict.kind, verdict.certain) == (kind, certain)
    if kind != "overflow":
        assert (verdict.runner_up, verdict.window, verdict.input_tokens) == ("overflow", None, None)


def test_a_code_is_believed_without_the_numbers_beside_it() -> None:
    verdict = judge(400, error(TOO_LONG, code="context_length_exceeded"), sent=Sent(tokens=300))
    assert (verdict.kind, verdict.certain, verdict.window) == ("overflow", False, None)


def test_a_refusal_shows_neither_its_body_nor_its_headers() -> None:
    assert "secret" not in repr(Refusal(400, "secret", {"authorization": "secret"}))


def test_a_status_that_is_no_number_is_judged_all_the_same() -> None:
    assert judge("400", error(TOO_LONG)).kind in ("other_4xx", "overflow")  # type: ignore[arg-type]


# ── near twins ────────────────────────────────────────────────────────────────────────────────────────────────────────

TWINS = [
    ("Range of input length should be [1, 245760]", "overflow"),
    ("Range of max_tokens should be [1, 8192]", "output_limit"),
    ("`inputs` tokens + `max_new_tokens` must be <= 4097. Given: 80125 `inputs` tokens and 4096 `max_new`", "overflow"),
    ("`max_new_tokens` must be <= 4096. Given: 8192", "output_limit"),
    ("max_tokens is too large: 100000. This model supports at most 16384 completion tokens", "output_limit"),
    (
        "'max_tokens' or 'max_completion_tokens' is too large: 8192. This model's maximum context length is 65536 "
        "tokens and your request has 65500 input tokens (8192 > 65536 - 65500).",
        "overflow",
    ),
    ("max_tokens must be at least 1, got -7075.", "overflow"),
    ("max_tokens must be at least 1, got -1.", "other_4xx"),
    ("prompt token count of 391491 exceeds the limit of 128000", "overflow"),
    ("Invalid 'max_output_tokens': integer below minimum value. Expected a value >= 16, but got 8.", "other_4xx"),
    (TOO_LONG, "overflow"),
    ("image exceeds 5 MB maximum: 13129816 bytes > 5242880 bytes", "media_limit"),
    ("max_tokens: 21333 > 4096, which is the maximum allowed number of output tokens for m", "output_limit"),
    ("Input is too long for requested model.", "overflow"),
    ("too many images and documents: 601 + 0 > 600", "media_limit"),
    ("Prompt contains 170397 tokens, too large for model with 131072 maximum context length", "overflow"),
    ("Image input is not enabled for this model", "media_limit"),
    ("invalid params, context window exceeds limit (2013)", "overflow"),
    ("invalid params, media exceeds size limit: max 10485760 bytes (2013)", "media_limit"),
    ("Request body too large for gpt-4o model. Max size: 8000 tokens.", "overflow"),
    ("Request body too large. Max size: 8000 bytes.", "payload_bytes"),
    ("Cached content is too small. total_token_count=1233, min_total_token_count=2048", "other_4xx"),
    ("number of images exceeds the limit of 20", "media_limit"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "kind"), TWINS)
def test_near_twins_separate(text: str, kind: str) -> None:
    assert judge(400, error(text)).kind == kind


SAME_CODE: list[tuple[int, str, str, str, str]] = [
    # Copilot
    (400, "invalid_request_body", "", "prompt token count of 391491 exceeds the limit of 128000", "overflow"),
    (400, "invalid_request_body", "", "Invalid 'max_output_tokens': integer below minimum value.", "other_4xx"),
    (400, "model_max_prompt_tokens_exceeded", "", "no", "overflow"),
    (400, "integer_below_min_value", "", "no", "other_4xx"),
    # Mistral
    (400, "3051", "invalid_request_message_order", "Prompt contains 170397 tokens, too large for model", "overflow"),
    (400, "3051", "invalid_request_invalid_args", "Image input is not enabled for this model", "media_limit"),
    (400, "3051", "invalid_request_message_order", "Expected last role User or Tool", "other_4xx"),
    # MiniMax
    (400, "", "bad_request_error", "invalid params, context window exceeds limit (2013)", "overflow"),
    (400, "", "bad_request_error", "invalid params, media exceeds size limit: max 10485760 (2013)", "media_limit"),
    (400, "", "bad_request_error", "invalid params, tool result's tool id not found (2013)", "other_4xx"),
    # Groq and GitHub Models
    (413, "rate_limit_exceeded", "tokens", "Request too large: tokens per minute: Limit 8, Requested 9", "rate_limit"),
    (413, "tokens_limit_reached", "", "Request body too large for gpt-4o model. Max size: 8000 tokens.", "overflow"),
    # Bedrock
    (400, "", "ValidationException", "Input is too long for requested model.", "overflow"),
    (400, "", "ValidationException", "too many images and documents: 27 + 0 in request", "media_limit"),
    (400, "", "ValidationException", "The provided model identifier is invalid.", "other_4xx"),
]  # fmt: skip


@pytest.mark.parametrize(("status", "code", "name", "text", "kind"), SAME_CODE)
def test_one_code_or_status_has_several_causes(status: int, code: str, name: str, text: str, kind: str) -> None:
    for provider in ("generic", "mistral", "groq"):
        verdict = judge(status, error(text, code=code or None, type=name or None), provider)
        assert verdict.kind == kind, verdict.evidence


def test_the_same_empty_400_is_what_was_sent() -> None:
    assert judge(400, "", sent=Sent(tokens=31_000, window=32_768)).kind == "overflow"
    assert judge(400, "", sent=Sent(tokens=1_000, window=32_768)).kind == "other_4xx"
    assert judge(400, "").kind == "other_4xx"


def test_an_empty_413_is_bytes_unless_the_window_is_near() -> None:
    assert judge(413, "", sent=Sent(tokens=1_000, window=32_768)).kind == "payload_bytes"
    assert judge(413, "", sent=Sent(tokens=33_000, window=32_768)).kind == "overflow"


# ── wordings that nobody has listed ───────────────────────────────────────────────────────────────────────────────────

UNLISTED = [
    (400, "Your conversation has grown beyond the context window for this model (201,233 of 200,000 tokens)."),
    (400, "sequence length 9000 is larger than the maximum sequence length 8192"),
    (422, "prompt has 70000 tokens but the model supports at most 65536 tokens"),
    (500, "input token count 40000 over model limit 32768"),
    (400, "Context window limit reached. Start a new conversation."),
    (400, "Conversation too long for this model. Trim earlier messages."),
    (400, "The number of prompt tokens must be at most 32768, got 40123"),
    (400, "n_tokens 5000 > n_ctx 4096"),
    (400, "La longitud del contexto excede el máximo"),
    (400, "输入token数超过模型上下文长度限制"),
    (404, "Context limit is 49152 tokens; prompt=51402 leaves 0 output tokens, below the minimum 16"),
]

NOT_EVEN_CLOSE = [
    (400, "Invalid value for context: must be one of short, long"),
    (400, "max_tokens exceeds limit of 8192"),
    (400, "requested max_tokens 100000 is larger than the maximum of 8192 output tokens"),
    (400, "The request exceeds the maximum number of functions (64)"),
    (400, "File size 30MB exceeds the maximum allowed"),
    (429, "Input tokens exceed the context limit for your tier per minute"),
    (400, "message 3: content too long (limit 32000 characters)"),
    (400, "Your request was rejected by our safety system: the user asked why the context length is exceeded"),
    (400, "metadata value is too long, maximum length is 512"),
    (400, "tool name exceeds maximum length of 64"),
    (400, "prompt_cache_key is too long: maximum 64"),
    (400, "Audio input is too long: 40 minutes, maximum 30 minutes"),
    (503, "Request queue is too long, try again"),
    (400, "Your organization has exceeded its input token limit for the month"),
    (500, "context deadline exceeded"),
    (400, "Access token too long"),
    (400, "session token has expired, maximum lifetime exceeded"),
    (400, "Output token limit of 8192 exceeded"),
    (400, "thinking tokens exceed maximum budget"),
    (400, "logit_bias has too many tokens: 400 > 300"),
    (500, "internal error computing maximum context length"),
    (400, "The long context beta is not yet available for this subscription."),
]


@pytest.mark.parametrize(("status", "text"), UNLISTED)
def test_two_of_three_find_an_unlisted_wording(status: int, text: str) -> None:
    verdict = judge(status, error(text))
    assert verdict.action == "compact", verdict


@pytest.mark.parametrize(("status", "text"), NOT_EVEN_CLOSE)
def test_words_alone_are_not_enough(status: int, text: str) -> None:
    verdict = judge(status, error(text))
    assert verdict.action != "compact", verdict


def test_an_unlisted_wording_is_certain_only_with_numbers() -> None:
    assert judge(422, error("prompt has 70000 tokens but the model supports at most 65536 tokens")).certain
    assert not judge(400, error("Conversation too long for this model.")).certain


def test_an_unlisted_sum_that_fits_is_clamped() -> None:
    text = "the context window of 32768 tokens is exceeded: 9000 prompt tokens and 30000 completion tokens requested"
    verdict = judge(400, error(text))
    assert (verdict.kind, verdict.output_limit) == ("output_limit", 23_768)


# ── wrappers ──────────────────────────────────────────────────────────────────────────────────────────────────────────

WRAPPERS = {
    "bare text": lambda m: m,
    "error object": error,
    "error string": lambda m: json.dumps({"error": m}),
    "flat message": lambda m: json.dumps({"code": "invalid", "message": m}),
    "detail string": lambda m: json.dumps({"detail": m}),
    "detail list": lambda m: json.dumps({"detail": [{"msg": m}]}),
    "errors list": lambda m: json.dumps({"errors": [{"message": m}]}),
    "errors of strings": lambda m: json.dumps({"errors": [m]}),
    "anthropic": lambda m: json.dumps({"type": "error", "error": {"type": "invalid_request_error", "message": m}}),
    "response.failed": lambda m: json.dumps({"type": "response.failed", "response": {"error": {"message": m}}}),
    "openrouter raw": lambda m: error("Provider returned error", code=400, metadata={"raw": error(m)}),
    "openrouter raw text": lambda m: error("Provider returned error", code=400, metadata={"raw": m}),
    "litellm": lambda m: error(f"litellm.BadRequestError: OpenAIException - {error(m)}\nmodel=x. fallbacks=None."),
    "litellm bytes": lambda m: error(f"litellm.BadRequestError: AnthropicError - b'{error(m)}'", code="400"),
    "litellm 503": lambda m: error(f"litellm.ServiceUnavailableError: litellm.MidStreamFallbackError: {m}", code="503"),
    "json in json in json": lambda m: json.dumps({"error": json.dumps({"error": json.dumps({"message": m})})}),
    "json string": lambda m: json.dumps(error(m)),
    "list": lambda m: json.dumps([{"error": {"message": m, "code": 400}}]),
    "bedrock": lambda m: json.dumps({"__type": "ValidationException", "message": f"The model returned errors: {m}"}),
    "boto text": lambda m: f"An error occurred (ValidationException) when calling the Converse operation: {m}",
    "rust debug": lambda m: json.dumps({"message": f'ErrorEvent {{ error: APIError {{ message: "{m}" }} }}'}),
    "sse": lambda m: f"event: error\ndata: {error(m)}\n\n",
    "html": lambda m: f"<html><body><h1>400</h1><p>{m.replace('>', '&gt;')}</p></body></html>",
    "label": lambda m: error(f"Upstream request failed: [invalid_request_error] {m}"),
}  # fmt: skip


@pytest.mark.parametrize("wrapper", WRAPPERS)
@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("The input (61709 tokens) is longer than the model's context length (40960 tokens).", "overflow"),
        ("max_tokens is too large: 9000. This model supports at most 4096 completion tokens", "output_limit"),
        ("Tokens per minute limit exceeded - too many tokens processed.", "rate_limit"),
        ("too many images and documents: 27 + 0 in request", "media_limit"),
    ],
)
def test_a_wrapper_does_not_change_the_verdict(wrapper: str, message: str, kind: str) -> None:
    plain, wrapped = judge(400, message), judge(400, WRAPPERS[wrapper](message))
    assert wrapped.kind == kind, wrapped.evidence
    assert (wrapped.input_tokens, wrapped.window, wrapped.output_limit) == (
        plain.input_tokens,
        plain.window,
        plain.output_limit,
    )


@pytest.mark.parametrize(
    "body",
    [
        json.dumps({"type": "error", "error": {"type": "invalid_request_error", "message": TOO_LONG}}),
        '{"type":"response.failed","response":{"status":"failed","error":{"code":"context_length_exceeded"}}}',
        '{"type":"error","sequence_number":2,"code":"context_length_exceeded","message":"no","param":"input"}',
        error(TOO_LONG, code=400),
        f"data: {error(TOO_LONG)}\n\n",
    ],
)
def test_an_overflow_in_a_stream_is_one(body: str) -> None:
    assert judge(200, body, in_stream=True).action == "compact"


# ── echoes ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "body",
    [
        error("Failed to call a function.", code="tool_use_failed", failed_generation=TOO_LONG),
        error("Bad request", input=TOO_LONG, messages=[{"role": "user", "content": TOO_LONG}]),
        error(f"Invalid user message={{'role': 'user', 'content': '{TOO_LONG}'}}"),
        error(f"1 validation error: Field required [type=missing, input_value={{'text': '{TOO_LONG}'}}]"),
        json.dumps({"detail": [{"msg": "Field required", "input": {"content": TOO_LONG}}]}),
        json.dumps(
            {"choices": [{"message": {"content": TOO_LONG}, "finish_reason": "stop"}], "error": {"message": "no"}}
        ),
        json.dumps({"error": {"message": "Your input was flagged", "metadata": {"flagged_input": TOO_LONG}}}),
        error("Invalid JSON", request_body={"messages": [{"content": TOO_LONG}]}),
        error("Unknown tool", arguments=json.dumps({"text": TOO_LONG})),
        json.dumps({"error": {"message": "Bad gateway"}, "output": [{"type": "message", "content": TOO_LONG}]}),
        json.dumps({"type": "response.failed", "response": {"instructions": TOO_LONG, "error": {"message": "no"}}}),
    ],
)
def test_an_echo_of_the_request_or_of_a_reply_is_not_read(body: str) -> None:
    assert judge(400, body).action != "compact"


def test_a_reply_that_speaks_of_overflows_is_an_answer() -> None:
    body = json.dumps({"choices": [{"message": {"content": TOO_LONG}, "finish_reason": "stop"}]})
    assert judge(200, body).action == "none"


QUOTES = [
    "Your request was rejected by our safety system: {}",
    "The response was filtered due to the prompt triggering the content management policy. Prompt: {}",
    "Flagged by moderation. Quoted: {}",
    "Invalid user message={{'role': 'user', 'content': '{}'}}",
    "Failed to parse tool arguments [type=json_invalid, input_value='{}', input_type=str]",
]
TALK = [
    "why does my agent say the context length is exceeded",
    "explain: this model's maximum context length is 8192 tokens",
    "prompt is too long: 215692 tokens > 200000 maximum",
    "context window too small, please reduce the length of the messages",
    "what is the difference between context length and max_tokens",
]


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(QUOTES),
    st.sampled_from(TALK),
    st.sampled_from(["content_filter", "content_policy_violation", "invalid_prompt", None]),
    st.sampled_from(["", "Dear model, ", "I am asking for a friend. "]),
)
def test_a_filter_or_an_echo_that_quotes_the_user_is_no_overflow(
    quote: str, talk: str, code: str | None, before: str
) -> None:
    verdict = judge(400, error(quote.format(before + talk), code=code))
    assert verdict.action != "compact", verdict.evidence


# ── after success ─────────────────────────────────────────────────────────────────────────────────────────────────────


def answer(finish: str, prompt: int, output: int) -> str:
    usage = {"prompt_tokens": prompt, "completion_tokens": output}
    return json.dumps({"choices": [{"message": {"content": ""}, "finish_reason": finish}], "usage": usage})


@pytest.mark.parametrize(
    ("body", "sent", "kind"),
    [
        (answer("stop", 100, 10), Sent(tokens=110, window=4096), "other_4xx"),
        (answer("length", 4090, 0), Sent(tokens=4000, window=4096), "overflow"),
        (answer("length", 100, 500), Sent(tokens=110, window=4096), "truncated_output"),
        (answer("stop", 5000, 10), Sent(tokens=4800, window=4096), "truncated_output"),
        (answer("stop", 2051, 10), Sent(tokens=9000, window=32_768), "truncated_output"),
        (
            '{"stop_reason":"end_turn","usage":{"input_tokens":12,"cache_read_input_tokens":9000,"output_tokens":4}}',
            Sent(tokens=9100, window=200_000),
            "other_4xx",
        ),
    ],
)
def test_an_answer_that_was_cut_is_told(body: str, sent: Sent, kind: str) -> None:
    assert judge(200, body, sent=sent).kind == kind


# ── bodies sent to break it ───────────────────────────────────────────────────────────────────────────────────────────

MEGABYTE = 1_000_000
HOSTILE = {
    "open lists": "[" * MEGABYTE,
    "open objects": '{"error":' * (MEGABYTE // 9),
    "escapes": '"' + "\\u0000" * (MEGABYTE // 6),
    "one long number": "1" * MEGABYTE,
    "numbers": "999 " * (MEGABYTE // 4),
    "openings of a pattern": "maximum context length is 1 tokens. however, you requested " * (MEGABYTE // 60),
    "all the bait": "prompt input exceeds max_tokens (9) image limit throttl tpm " * (MEGABYTE // 60),
    "waits": "wait in 9h " * (MEGABYTE // 11),
    "many errors": json.dumps({"errors": [{"message": "input exceeds the context length of 9 tokens"}] * 20_000}),
    "many keys": json.dumps({f"error{i}": {"message": "prompt too long"} for i in range(20_000)}),
    "strings in strings": '{"error":"{' + '\\"error\\":\\"{' * (MEGABYTE // 13),
    "tags": "<a" * (MEGABYTE // 2),
    "distinct words": " ".join(f"w{i:x}" for i in range(MEGABYTE // 6)),
    "distinct words in an error": json.dumps({"error": {"message": " ".join(f"tokens{i}" for i in range(80_000))}}),
    "braces": "error: {" * (MEGABYTE // 8),
    "sentences": "the context. is longer! than; tokens? " * (MEGABYTE // 38),
    "quotes in text": "context length 4096 b'{" * (MEGABYTE // 22),
    "blanks": " " * MEGABYTE,
    "one key": json.dumps({"e" * MEGABYTE: "prompt is too long"}),
    "not utf-8": b"\xff\xfe" * (MEGABYTE // 2),
    "empty lists": "[" + "[]," * (MEGABYTE // 3) + "[]]",
    "empty objects": "[" + "{}," * (MEGABYTE // 3) + "{}]",
    "short lists": "[" + "[1]," * (MEGABYTE // 4) + "[]]",
    "small numbers": "[" + "1," * (MEGABYTE // 2) + "1]",
    "short strings": "[" + '"a",' * (MEGABYTE // 4) + '"a"]',
    "half a character, and lists": '["\\ud800",' + "[]," * (MEGABYTE // 3) + "[]]",
    "half a character, and numbers": '["\\ud800",' + "1," * (MEGABYTE // 2) + "1]",
    "lists in strings": json.dumps({"errors": [{"message": 'x {"a":[' + "[]," * 20_000 + "[]]}"}] * 16}),
    "lists in many strings": json.dumps({"errors": [{"message": 'x {"a":[' + "[]," * 1_000 + "[]]}"}] * 320}),
    "quotations": "content: 'the user has said this'. " * (MEGABYTE // 34),
    "opening quotations": "content: '" * (MEGABYTE // 10),
    "brackets": '"messages":[' * (MEGABYTE // 12),
    "entities": "&gt;&amp;" * (MEGABYTE // 9),
    "spaced numbers": "1 234 " * (MEGABYTE // 6),
    "eight megabytes of lists": "[" + "[]," * (8 * MEGABYTE // 3) + "[]]",
    "sixty megabytes": b"x" * (60 * MEGABYTE),
    "frames": 'data: {"error":{}}\n' * (MEGABYTE // 19),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_megabyte_costs_little(name: str) -> None:
    refusal = Refusal(400, HOSTILE[name])
    classify(refusal, GENERIC)  # patterns compiled
    spent = []
    for _ in range(3):
        began = time.thread_time()
        classify(refusal, GENERIC)
        spent.append(time.thread_time() - began)
    assert min(spent) < 0.020


@settings(max_examples=150, deadline=None)
@given(st.one_of(st.none(), st.integers(100, 599)), st.binary(max_size=400), st.booleans())
def test_no_bytes_raise(status: int | None, body: bytes, in_stream: bool) -> None:
    classify(Refusal(status, body, in_stream=in_stream), GENERIC, sent=Sent())


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.just(TOO_LONG),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["error", "message", "code", "type", "detail", "status", "usage"]), inner, max_size=4
        )
    ),
    max_leaves=12,
)


@settings(max_examples=150, deadline=None)
@given(JSON)
def test_no_json_raises(body: object) -> None:
    verdict = classify(Refusal(400, json.dumps(body)), GENERIC)
    assert verdict.evidence.rule != "unreadable"


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(sorted(WRAPPERS.keys() - {"html", "sse", "rust debug", "boto text"})), max_size=3))
def test_wrappers_of_wrappers_do_not_change_the_verdict(names: list[str]) -> None:
    body = "The input (61709 tokens) is longer than the model's context length (40960 tokens)."
    for name in names:
        body = WRAPPERS[name](body)
    verdict = judge(400, body)
    assert (verdict.kind, verdict.window, verdict.input_tokens) == ("overflow", 40_960, 61_709)
