"""Agent Zero: what `rl-pipeline agent-zero install` puts into it, a plugin or extensions, and what these call.

The plugin's own files only pass on what they are told; all that remembers something lives here, because Agent Zero
loads the files of a plugin anew whenever one of them changes.
"""
