"""Text and tokens of a base model: its tokenizer, its chat template, and speech as it comes."""
