"""Masks what enters the history."""

import json

from python.helpers.extension import Extension


class MaskHistoryContent(Extension):
    async def execute(self, content_data=None, **kwargs):
        masked = json.dumps(content_data["content"]).replace("correct-horse-battery", "§§secret(TOKEN)")
        content_data["content"] = json.loads(masked)
