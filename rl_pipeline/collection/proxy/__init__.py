"""The recording proxy: it stands between an agent and its model, speaks OpenAI's API, and records what passes.

For agents that cannot be changed. It needs `pip install 'rl-pipeline[proxy]'`. What passes is neither changed nor held
up: requests and answers go through byte by byte, and a thread makes trajectories of the copies.
"""
