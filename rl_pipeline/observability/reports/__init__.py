"""What people and superior agents are told, as files and as events: the day, the week, and the end of each training.

Figures are read from the tables and nothing else; what the tables do not know is None, and the text says that it is not
known. Findings are rules over figures, each with its evidence in its words.
"""
