"""The embedded base model: a tokenizer and a transformer of 0.4 million parameters, made by the project itself."""
