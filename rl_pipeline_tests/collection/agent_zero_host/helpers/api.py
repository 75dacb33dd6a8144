"""How Agent Zero finds the handler of `POST /api/plugins/<plugin>/<handler>`."""

from helpers import modules, plugins


class ApiHandler:
    def __init__(self, app, thread_lock):
        self.app = app
        self.thread_lock = thread_lock


async def post(path, content):
    _, plugin_name, handler = path.split("/", 2)
    file = plugins.ROOT / "usr" / "plugins" / plugin_name / "api" / f"{handler}.py"
    [handler_class] = modules.load_classes_from_file(file, ApiHandler)
    return await handler_class(None, None).process(content, None)
