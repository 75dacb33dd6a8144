"""Agent Zero 1.x: the plugin that `rl-pipeline agent-zero install` puts into it, and what its extensions call.

The plugin's own files only pass on what they are told; all that remembers something lives here, because Agent Zero
loads the files of a plugin anew whenever one of them changes.
"""
