"""Teach a model one sentence through the Tinker API: `tinsmith serve`, then run this beside it."""

import os
import sys

import tinker

url = (
    sys.argv[1] if len(sys.argv) > 1 else os.environ.get("TINKER_BASE_URL", "http://127.0.0.1:7411")
)
service = tinker.ServiceClient(base_url=url, api_key="tml-local")
trainer = service.create_lora_training_client("tinsmith/tiny", rank=8, seed=1)
tokenizer = trainer.get_tokenizer()
tokens = tokenizer.encode("12 + 30 = 42")
datum = tinker.Datum(
    model_input=tinker.ModelInput.from_ints(tokens[:-1]),
    loss_fn_inputs={"target_tokens": tokens[1:], "weights": [1.0] * (len(tokens) - 1)},
)
for step in range(8):
    passed = trainer.forward_backward([datum], "cross_entropy")
    trainer.optim_step(tinker.AdamParams(learning_rate=0.005)).result()
    print(f"step {step}  loss {passed.result().metrics['loss:sum']:.3f}")

sampler = trainer.save_weights_and_get_sampling_client()
prompt = tinker.ModelInput.from_ints(tokens[: len(tokens) // 2])
sample = sampler.sample(prompt, 1, tinker.SamplingParams(max_tokens=12, temperature=0.0)).result()
print("sample", repr(tokenizer.decode(tokens[: len(tokens) // 2] + sample.sequences[0].tokens)))
print("logprobs", [p and round(p, 2) for p in sampler.compute_logprobs(prompt).result()])
path = trainer.save_state("hello").result().path
print("saved and loaded", trainer.load_state(path).result().path)
