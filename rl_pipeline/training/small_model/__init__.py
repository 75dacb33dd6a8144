"""The embedded base model: a tokenizer and a transformer of well under a million parameters, made by the project itself."""
