"""Agents as Agent Zero has them, in few lines: history, monologue, tools, secrets, subordinates, tasks to be killed."""

import asyncio
import json
import threading
import uuid
from types import SimpleNamespace

from helpers import extension

SECRETS = {"TOKEN": "correct-horse-battery"}


def mask(value):
    for name, secret in SECRETS.items():
        value = json.loads(json.dumps(value).replace(secret, f"§§secret({name})"))
    return value


def unmask(text):
    for name, secret in SECRETS.items():
        text = text.replace(f"§§secret({name})", secret)
    return text


class AgentContext:
    _contexts = {}

    def __init__(self, answers, profile="", chat_model="base-model"):
        self.id = uuid.uuid4().hex[:8]
        self.data = {}
        self.answers = answers
        self.task = None
        AgentContext._contexts[self.id] = self
        self.agent0 = Agent(0, SimpleNamespace(profile=profile, chat_model=SimpleNamespace(name=chat_model)), self)

    @staticmethod
    def get(id):
        return AgentContext._contexts.get(id)

    @staticmethod
    @extension.extensible
    def remove(id):
        context = AgentContext._contexts.pop(id, None)
        if context and context.task:
            context.task.kill()
        return context

    def get_data(self, key, recursive=True):
        return self.data.get(key)

    def set_data(self, key, value, recursive=True):
        self.data[key] = value

    @extension.extensible
    def kill_process(self):
        if self.task:
            self.task.kill()

    def is_running(self):
        return bool(self.task and self.task.is_alive())

    def communicate(self, message):
        self.task = DeferredTask(self._process_chain(self.agent0, message))
        return self.task

    @extension.extensible
    async def _process_chain(self, agent, message):
        agent.hist_add_user_message(message)
        return await agent.monologue()


class DeferredTask:
    """Runs in a thread with a loop of its own; `kill` cancels it."""

    def __init__(self, coroutine):
        self.loop = asyncio.new_event_loop()
        self.task = self.loop.create_task(coroutine)
        self.outcome = None
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self):
        try:
            self.outcome = self.loop.run_until_complete(self.task)
        except BaseException as error:
            self.outcome = error
        finally:
            self.loop.close()

    def is_alive(self):
        return self.thread.is_alive()

    def result(self):
        self.thread.join(60)
        if isinstance(self.outcome, BaseException):
            raise self.outcome
        return self.outcome

    def kill(self):
        self.loop.call_soon_threadsafe(self.task.cancel)
        self.thread.join(60)


class Message:
    def __init__(self, ai, content):
        self.ai, self.content, self.id = ai, content, str(uuid.uuid4())


class Agent:
    DATA_NAME_SUPERIOR = "_superior"

    @extension.extensible
    def __init__(self, number, config, context):
        self.number, self.config, self.context = number, config, context
        self.agent_name = f"A{number}"
        self.history = []
        self.data = {}
        self.unmasked = []
        extension.call_extensions_sync("agent_init", self)
        if number == 0:
            self.hist_add_ai_response("Hello! How can I help?")

    @extension.extensible
    async def monologue(self):
        while True:
            self.get_chat_model()
            await asyncio.sleep(0)
            answer = self.context.answers(self)
            self.hist_add_ai_response(answer)
            response = await self.process_tools(answer)
            if response:
                return response

    @extension.extensible
    def get_chat_model(self):
        return SimpleNamespace(model_name="chat-model")

    async def process_tools(self, answer):
        try:
            request = json.loads(answer)
        except ValueError:
            self.hist_add_warning("You have misformatted your message.")
            return None
        name, arguments = request["tool_name"], request["tool_args"]
        self.unmasked.append({key: unmask(value) for key, value in arguments.items()})
        arguments = self.unmasked[-1]
        if name == "response":
            return arguments["text"]
        if name == "hang":
            self.context.hanging.set()
            await asyncio.Event().wait()
        if name == "explode":
            raise RuntimeError(arguments["why"])
        if name == "call_subordinate":
            config = SimpleNamespace(profile=arguments["profile"], chat_model=self.config.chat_model)
            subordinate = Agent(self.number + 1, config, self.context)
            subordinate.data[Agent.DATA_NAME_SUPERIOR] = self
            subordinate.hist_add_user_message(arguments["message"])
            self.hist_add_tool_result(name, await subordinate.monologue())
        else:
            self.hist_add_tool_result(name, f"ran {arguments}")
        return None

    def hist_add_message(self, ai, content):
        message = Message(ai, mask(content))
        self.history.append(message)
        return message

    @extension.extensible
    def hist_add_user_message(self, message, intervention=False):
        return self.hist_add_message(False, {"user_message": message})

    @extension.extensible
    def hist_add_ai_response(self, message):
        return self.hist_add_message(True, message)

    @extension.extensible
    def hist_add_warning(self, message):
        return self.hist_add_message(False, {"system_warning": message})

    @extension.extensible
    def hist_add_tool_result(self, tool_name, tool_result, **kwargs):
        return self.hist_add_message(False, {"tool_name": tool_name, "tool_result": tool_result, **kwargs})
