"""Teach a model one sum through the Tinker API. Run `tinsmith serve`, and beside it:

TINKER_BASE_URL=http://127.0.0.1:7411 python examples/01_hello.py
"""

import tinker

# The address of the service is read from TINKER_BASE_URL; on loopback any key of this form will do.
service = tinker.ServiceClient(api_key="tml-local")
trainer = service.create_lora_training_client("tinsmith/tiny", rank=8, seed=1)
tokenizer = trainer.get_tokenizer()
tokens = tokenizer.encode("12 + 30 = 42<|im_end|>")
datum = tinker.Datum(
    model_input=tinker.ModelInput.from_ints(tokens[:-1]),
    loss_fn_inputs={"target_tokens": tokens[1:], "weights": [1.0] * (len(tokens) - 1)},
)
for step in range(16):
    passed = trainer.forward_backward([datum], "cross_entropy")
    trainer.optim_step(tinker.AdamParams(learning_rate=0.004)).result()
    print(f"step {step}  loss {passed.result().metrics['loss:sum']:.3f}")

sampler = trainer.save_weights_and_get_sampling_client()
prompt = tinker.ModelInput.from_ints(tokens[: len(tokens) // 2])
sample = sampler.sample(prompt, 1, tinker.SamplingParams(max_tokens=12, temperature=0.0)).result()
print("sample", repr(tokenizer.decode(tokens[: len(tokens) // 2] + sample.sequences[0].tokens)))
print("logprobs", [p and round(p, 2) for p in sampler.compute_logprobs(prompt).result()])
path = trainer.save_state("hello").result().path
print("saved and loaded", trainer.load_state(path).result().path)
