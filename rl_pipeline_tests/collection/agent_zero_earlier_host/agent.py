"""Agents as Agent Zero 0.9.x has them, in few lines: the monologue with its retries, the history, subordinates."""

import asyncio
import json
import uuid
from types import SimpleNamespace

from python.helpers.extension import call_extensions


class InterventionException(Exception):
    pass


class HandledException(Exception):
    pass


def at_once(coroutine):
    """What Agent Zero does with `asyncio.run` inside a loop that runs."""
    try:
        coroutine.send(None)
    except StopIteration as ended:
        return ended.value
    raise RuntimeError("an extension waited")


class AgentContext:
    def __init__(self, answers):
        self.id = uuid.uuid4().hex[:8]
        self.data = {}
        self.answers = answers
        self.agent0 = Agent(0, SimpleNamespace(profile="", chat_model=SimpleNamespace(name="base-model")), self)

    def get_data(self, key, recursive=True):
        return self.data.get(key)

    def set_data(self, key, value, recursive=True):
        self.data[key] = value

    def is_running(self):
        return False

    async def communicate(self, message):
        self.agent0.hist_add_user_message(message)
        return await self.agent0.monologue()


class Agent:
    DATA_NAME_SUPERIOR = "_superior"

    def __init__(self, number, config, context):
        self.number, self.config, self.context = number, config, context
        self.agent_name = f"A{number}"
        self.history = []
        self.data = {}
        self.intervention = None
        at_once(call_extensions("agent_init", agent=self))
        if number == 0:
            self.hist_add_ai_response("Hello! How can I help?")

    async def monologue(self):
        while True:
            try:
                await call_extensions("monologue_start", agent=self, loop_data=None)
                while True:
                    await call_extensions("message_loop_start", agent=self, loop_data=None)
                    self.handle_intervention()
                    await asyncio.sleep(0)
                    answer = self.context.answers(self)
                    self.hist_add_ai_response(answer)
                    response = await self.process_tools(answer)
                    if response:
                        return response
            except InterventionException:
                pass  # begins over
            except Exception as error:
                raise HandledException(error) from error
            finally:
                await call_extensions("monologue_end", agent=self, loop_data=None)

    def handle_intervention(self):
        if self.intervention:
            message, self.intervention = self.intervention, None
            self.hist_add_user_message(message, intervention=True)
            raise InterventionException

    async def process_tools(self, answer):
        try:
            request = json.loads(answer)
        except ValueError:
            self.hist_add_message(False, {"system_warning": "You have misformatted your message."})
            return None
        name, arguments = request["tool_name"], request["tool_args"]
        if name == "response":
            return arguments["text"]
        if name == "hang":
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
        content_data = {"content": content}
        at_once(call_extensions("hist_add_before", agent=self, content_data=content_data, ai=ai))
        self.history.append(content_data["content"])

    def hist_add_user_message(self, message, intervention=False):
        self.hist_add_message(False, {"user_intervention" if intervention else "user_message": message})

    def hist_add_ai_response(self, message):
        self.hist_add_message(True, message)

    def hist_add_tool_result(self, tool_name, tool_result, **kwargs):
        self.hist_add_message(False, {"tool_name": tool_name, "tool_result": tool_result, **kwargs})
