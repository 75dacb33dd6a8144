"""How answers are scored, one kind of question per module; each also loads items of its kind."""
